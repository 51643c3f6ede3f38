//! Do tensors arrive unchanged when they move from server to server?

use std::time::Duration;

use burn_tensor::Tensor;
use serde_json::{Value, json};

use crate::arguments::{Arguments, refuse};
use crate::attempt::attempt;
use crate::data::{index_tensor, uniform_tensor};
use crate::device::{Remote, RemoteDevice};
use crate::output::checksum;

/// The shapes that move one after another; the last is 8 MiB of f32.
const SHAPES: [[usize; 2]; 5] = [[1, 1], [16, 16], [3, 1000], [512, 512], [2048, 1024]];

/// How many tensors move at the same time.
const OVERLAPPING: usize = 8;

/// `move ADDRESS ADDRESS [--pattern all|sequential|overlapping|threads] [--wait 10]`
pub fn run(arguments: &Arguments) -> Value {
    let from = RemoteDevice::new(arguments.word(0, "the address to move from"));
    let to = RemoteDevice::new(arguments.word(1, "the address to move to"));
    let pattern: String = arguments.option("--pattern", "all".to_string());
    let limit = Duration::from_secs_f64(arguments.option("--wait", 10.0));
    let patterns: [(&str, Pattern); 3] = [
        ("sequential", sequential),
        ("overlapping", overlapping),
        ("threads", from_threads),
    ];
    if pattern != "all" && patterns.iter().all(|(name, _)| *name != pattern) {
        refuse("--pattern is all, sequential, overlapping or threads");
    }
    let mut results = serde_json::Map::new();
    for (name, work) in patterns {
        if pattern == "all" || pattern == name {
            let (from, to) = (from.clone(), to.clone());
            let outcome = attempt(name, limit, move || work(&from, &to));
            results.insert(name.to_string(), outcome.to_json());
        }
    }
    Value::Object(results)
}

/// Moves tensors from the first device to the second and reports what arrived.
type Pattern = fn(&RemoteDevice, &RemoteDevice) -> Value;

/// There, something computed there, and back again; floats, integers and booleans; each read before the next moves.
fn sequential(from: &RemoteDevice, to: &RemoteDevice) -> Value {
    let floats: Vec<Value> = SHAPES
        .into_iter()
        .enumerate()
        .map(|(salt, shape)| {
            let tensor = uniform_tensor::<Remote, 2>(shape, salt as u32, 1.0, from);
            let sent = checksum(&tensor.to_data());
            let moved = tensor.to_device(to);
            let arrived = checksum(&moved.to_data());
            let doubled = (moved * 2.0).to_device(from);
            let returned = checksum(&(doubled * 0.5).to_data());
            json!({"shape": shape, "sent": sent, "arrived": arrived, "returned": returned,
                   "equal": sent == arrived && sent == returned})
        })
        .collect();
    let ints = index_tensor::<Remote, 2>([16, 16], 20, 1000, from);
    let mask = ints.clone().greater_elem(500);
    let sent = [checksum(&ints.to_data()), mask_count(mask.clone())];
    let moved_ints = ints.to_device(to);
    let int_sum = checksum(&moved_ints.to_data());
    let arrived = [int_sum, mask_count(mask.to_device(to))];
    json!({"floats": floats, "int_and_bool": {"sent": sent, "arrived": arrived, "equal": sent == arrived}})
}

fn mask_count(mask: Tensor<Remote, 2, burn_tensor::Bool>) -> u32 {
    mask.int().sum().into_scalar() as u32
}

/// Independent tensors, all under way before the first is read.
fn overlapping(from: &RemoteDevice, to: &RemoteDevice) -> Value {
    let tensors: Vec<Tensor<Remote, 2>> = (0..OVERLAPPING as u32)
        .map(|salt| uniform_tensor([64 << (salt % 3), 64], 100 + salt, 1.0, from))
        .collect();
    let sent: Vec<u32> = tensors.iter().map(|t| checksum(&t.to_data())).collect();
    let moved: Vec<_> = tensors.into_iter().map(|t| t.to_device(to)).collect();
    let arrived: Vec<u32> = moved.iter().map(|t| checksum(&t.to_data())).collect();
    json!({"sent": sent, "arrived": arrived, "equal": sent == arrived})
}

/// As [`overlapping`], each tensor from a thread of its own, that is, from a stream of its own.
fn from_threads(from: &RemoteDevice, to: &RemoteDevice) -> Value {
    let workers: Vec<_> = (0..4u32)
        .map(|salt| {
            let (from, to) = (from.clone(), to.clone());
            std::thread::spawn(move || {
                let tensor = uniform_tensor::<Remote, 2>([128, 64], 200 + salt, 1.0, &from);
                let sent = checksum(&tensor.to_data());
                (sent, checksum(&tensor.to_device(&to).to_data()))
            })
        })
        .collect();
    let pairs: Vec<(u32, u32)> = workers
        .into_iter()
        .map(|worker| worker.join().expect("the thread's own panic is printed"))
        .collect();
    let equal = pairs.iter().all(|(sent, arrived)| sent == arrived);
    json!({"pairs": pairs, "equal": equal})
}
