//! Do tensors arrive unchanged when they move, between servers and between the devices of one server?

use std::time::{Duration, Instant};

use burn_tensor::{Device, Tensor};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::attempt::attempt;
use crate::data::{checksum, device, index_tensor, uniform_tensor};

const SHAPES: [[usize; 2]; 4] = [[1, 1], [16, 16], [3, 1000], [512, 512]];

/// `move ADDRESS ADDRESS [--from 0] [--to 0] [--wait 20]`: `--from` and `--to` are the numbers of devices.
pub fn run(arguments: &Arguments) -> Value {
    let from = device(
        arguments.word(0, "the address to move from"),
        arguments.option("--from", 0),
    );
    let to = device(
        arguments.word(1, "the address to move to"),
        arguments.option("--to", 0),
    );
    let limit = Duration::from_secs_f64(arguments.option("--wait", 20.0));
    attempt("moving", limit, move || moved(&from, &to)).to_json()
}

/// There, something computed there, and back again; each read before the next moves, then all at once.
fn moved(from: &Device, to: &Device) -> Value {
    let mut equal = true;
    for (salt, shape) in SHAPES.into_iter().enumerate() {
        let tensor = uniform_tensor::<2>(shape, salt as u32, 1.0, from);
        let sent = checksum(&tensor.to_data());
        let there = tensor.to_device(to);
        equal &= checksum(&there.to_data()) == sent;
        let back = (there * 2.0).to_device(from) * 0.5;
        equal &= checksum(&back.to_data()) == sent;
    }
    let ints = index_tensor::<2>([16, 16], 20, 1000, from);
    let sent = checksum(&ints.to_data());
    equal &= checksum(&ints.to_device(to).to_data()) == sent;
    let tensors: Vec<Tensor<2>> = (0..8)
        .map(|salt| uniform_tensor([64, 64], 100 + salt, 1.0, from))
        .collect();
    let sent: Vec<u32> = tensors
        .iter()
        .map(|tensor| checksum(&tensor.to_data()))
        .collect();
    let there: Vec<Tensor<2>> = tensors
        .into_iter()
        .map(|tensor| tensor.to_device(to))
        .collect();
    let arrived: Vec<u32> = there
        .iter()
        .map(|tensor| checksum(&tensor.to_data()))
        .collect();
    json!({"equal": equal && sent == arrived})
}

/// `local-moves ADDRESS [--seconds 2] [--salt 1]`: moves between devices 0 and 1 of one server, for `--seconds`.
///
/// Start it twice at once with different salts: the real server then swaps tensors, or hangs.
pub fn local(arguments: &Arguments) -> Value {
    let address = arguments.word(0, "the server's address").to_string();
    let salt: u32 = arguments.option("--salt", 1);
    let seconds = Duration::from_secs_f64(arguments.option("--seconds", 2.0));
    let (from, to) = (device(&address, 0), device(&address, 1));
    let limit = seconds + Duration::from_secs(20);
    let work = move || {
        let (start, mut moves, mut wrong) = (Instant::now(), 0u32, 0u32);
        while start.elapsed() < seconds {
            let tensor = uniform_tensor::<2>([16, 16], salt * 1000 + moves, 1.0, &from);
            let sent = checksum(&tensor.to_data());
            wrong += u32::from(checksum(&tensor.to_device(&to).to_data()) != sent);
            moves += 1;
        }
        json!({"moves": moves, "wrong": wrong})
    };
    attempt("moving", limit, work).to_json()
}
