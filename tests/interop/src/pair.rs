//! Are two processes apart from each other? Both count their tensors from 0.

use std::time::{Duration, Instant};

use burn_tensor::Tensor;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::data::uniform_tensor;
use crate::device::{Remote, RemoteDevice};
use crate::watchdog;

/// `two-clients ADDRESS [--seconds 3] [--salt PROCESS-ID]`, to be started twice at once.
pub fn run(arguments: &Arguments) -> Value {
    let device = RemoteDevice::new(arguments.word(0, "the server's address"));
    let seconds: f64 = arguments.option("--seconds", 3.0);
    let salt: u32 = arguments.option("--salt", std::process::id());
    let end = Instant::now() + Duration::from_secs_f64(seconds);

    // Kept for the whole run: another process must neither replace nor drop it.
    let kept = uniform_tensor::<Remote, 2>([32, 32], salt, 1.0, &device);
    let kept_values = kept.to_data();
    let (mut rounds, mut wrong) = (0, 0);
    while Instant::now() < end {
        watchdog::step(format!("round {rounds}"));
        let value = (mixed(salt, rounds) % 1000) as f32;
        let tensor = Tensor::<Remote, 2>::full([16, 16], value, &device);
        let sum = (tensor.clone() + tensor * 2.0).sum().into_scalar();
        let right = sum == value * 3.0 * 256.0 && kept.to_data() == kept_values;
        wrong += usize::from(!right);
        rounds += 1;
    }
    json!({"salt": salt, "rounds": rounds, "wrong": wrong})
}

fn mixed(salt: u32, round: usize) -> u32 {
    crate::data::mix(round as u32, salt)
}
