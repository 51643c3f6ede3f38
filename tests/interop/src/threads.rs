//! Is one device usable from many threads? Each thread is a stream of its own on the wire.

use burn_tensor::Tensor;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::device::{Remote, RemoteDevice};
use crate::watchdog;

/// `threads N ADDRESS [--rounds 50] [--share]`
///
/// Each thread computes on numbers of its own. With `--share` it also uses a tensor that the main thread created and
/// did not wait for, which needs the streams of a session to be ordered.
pub fn run(arguments: &Arguments) -> Value {
    let count = arguments.number(0, "the number of threads", 4);
    let device = RemoteDevice::new(arguments.word(1, "the server's address"));
    let rounds: usize = arguments.option("--rounds", 50);
    let shared = arguments
        .switch("--share")
        .then(|| Tensor::<Remote, 2>::full([16, 16], 3.0, &device) * 2.0);

    watchdog::step("waiting for the threads");
    let workers: Vec<_> = (0..count)
        .map(|thread| {
            let (device, shared) = (device.clone(), shared.clone());
            std::thread::spawn(move || {
                (0..rounds)
                    .filter(|round| !is_right(thread * rounds + round, &device, shared.as_ref()))
                    .count()
            })
        })
        .collect();
    let mut wrong = 0;
    let mut panicked = 0;
    for worker in workers {
        match worker.join() {
            Ok(count) => wrong += count,
            Err(_) => panicked += 1,
        }
    }
    json!({"threads": count, "rounds": rounds, "wrong": wrong, "panicked": panicked})
}

/// Small integers throughout, so that every result is exact in f32.
fn is_right(number: usize, device: &RemoteDevice, shared: Option<&Tensor<Remote, 2>>) -> bool {
    let value = (number % 1000) as f32;
    let mut tensor = Tensor::<Remote, 2>::full([16, 16], value, device);
    let mut expected = value;
    for _ in 0..10 {
        tensor = tensor.clone() + 1.0;
        expected += 1.0;
    }
    if let Some(shared) = shared {
        tensor = tensor + shared.clone();
        expected += 6.0;
    }
    tensor.sum().into_scalar() == expected * 256.0
}
