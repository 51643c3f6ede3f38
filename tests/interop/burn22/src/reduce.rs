//! Do the devices of one server agree on the sum and the mean of their tensors?

use std::time::Duration;

use burn_tensor::Device;
use burn_tensor::distributed::{ReduceOperation, all_reduce};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::attempt::attempt;
use crate::data::{device, shown, uniform_tensor};

/// `all-reduce ADDRESS [--devices 2] [--rounds 3] [--wait 20]`: numbers of shape [3, 4] with salt `10 * round + device`.
///
/// Each round reduces by a sum and by a mean, and doubles the results on each device.
pub fn run(arguments: &Arguments) -> Value {
    let address = arguments.word(0, "the server's address").to_string();
    let count: usize = arguments.option("--devices", 2);
    let rounds: u32 = arguments.option("--rounds", 3);
    let limit = Duration::from_secs_f64(arguments.option("--wait", 20.0));
    let devices: Vec<Device> = (0..count).map(|index| device(&address, index)).collect();
    let work = move || {
        let results: Vec<Value> = (0..rounds)
            .map(|round| {
                json!({
                    "sum": reduced(&devices, round, ReduceOperation::Sum),
                    "mean": reduced(&devices, round, ReduceOperation::Mean),
                })
            })
            .collect();
        json!(results)
    };
    attempt("reducing", limit, work).to_json()
}

/// The doubled result of each device. Each has a thread of its own: the client sends the operations of a device when four
/// are waiting or one is read, so a thread that reads one device's result could wait for what it has not sent to another.
fn reduced(devices: &[Device], round: u32, operation: ReduceOperation) -> Vec<Value> {
    let threads: Vec<_> = devices
        .iter()
        .enumerate()
        .map(|(index, device)| {
            let (device, all) = (device.clone(), devices.to_vec());
            std::thread::spawn(move || {
                let salt = 10 * round + index as u32;
                let input = uniform_tensor::<2>([3, 4], salt, 1.0, &device);
                shown(&(all_reduce(input, operation, all).resolve() * 2.0).to_data())
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| json!("panic")))
        .collect()
}
