//! What does a program see when an operation fails on the server, and can it go on?

use std::time::Duration;

use burn_tensor::{Device, Int, Tensor};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::attempt::{Outcome, attempt};
use crate::data::{device, shown, uniform_tensor};

/// `errors ADDRESS [--wait 5]`: selects a row that does not exist, which only the server can refuse.
pub fn errors(arguments: &Arguments) -> Value {
    let device = device(arguments.word(0, "the server's address"), 0);
    let limit = Duration::from_secs_f64(arguments.option("--wait", 5.0));
    let on_device = device.clone();
    let read = attempt("selecting", limit, move || {
        let indices = Tensor::<1, Int>::from_ints([1, 1000], &on_device);
        let selected = matrix(&on_device).select(0, indices) * 2.0 + 1.0;
        match selected.try_into_data() {
            Ok(data) => shown(&data),
            Err(error) => json!({"error": format!("{error:?}")}),
        }
    });
    let again = attempt("using the session again", limit, move || {
        json!((matrix(&device) * 0.0 + 1.5).sum().into_scalar::<f32>() == 18.0)
    });
    let usable = matches!(again, Outcome::Value(Value::Bool(true)));
    json!({"read": read.to_json(), "usable_after": usable})
}

fn matrix(device: &Device) -> Tensor<2> {
    uniform_tensor([3, 4], 1, 1.0, device)
}

/// `threads N ADDRESS [--rounds 50]`: N threads on one device, each with tensors of its own.
pub fn threads(arguments: &Arguments) -> Value {
    let count = arguments.number(0, "the number of threads", 4);
    let device = device(arguments.word(1, "the server's address"), 0);
    let rounds: usize = arguments.option("--rounds", 50);
    let workers: Vec<_> = (0..count as u32)
        .map(|salt| {
            let device = device.clone();
            std::thread::spawn(move || {
                let mut x = uniform_tensor::<2>([4, 4], salt, 1.0, &device) * 0.0;
                for _ in 0..rounds {
                    x = x + (salt + 1) as f32;
                }
                x.sum().into_scalar::<f32>() == (16 * rounds) as f32 * (salt + 1) as f32
            })
        })
        .collect();
    let right: Vec<bool> = workers
        .into_iter()
        .map(|worker| worker.join().unwrap_or(false))
        .collect();
    json!({"wrong": right.iter().filter(|right| !**right).count()})
}
