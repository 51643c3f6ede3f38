//! Is one device usable from many threads? Each thread is a stream of its own on the wire.

use burn_tensor::Tensor;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::device::{Remote, RemoteDevice};
use crate::watchdog;

/// `threads N ADDRESS [--rounds 50] [--share]`
///
/// Each thread computes on numbers of its own. With `--share` a tensor is then handed from thread to thread, none of
/// which waits for the server: that needs the streams of a session to be ordered among each other.
pub fn run(arguments: &Arguments) -> Value {
    let count = arguments.number(0, "the number of threads", 4);
    let device = RemoteDevice::new(arguments.word(1, "the server's address"));
    let rounds: usize = arguments.option("--rounds", 50);

    watchdog::step("waiting for the threads");
    let workers: Vec<_> = (0..count)
        .map(|thread| {
            let device = device.clone();
            std::thread::spawn(move || {
                (0..rounds)
                    .filter(|round| !is_right(thread * rounds + round, &device))
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
    let shared_is_right = arguments
        .switch("--share")
        .then(|| hand_over(count, &device));
    json!({"threads": count, "rounds": rounds, "wrong": wrong, "panicked": panicked,
           "shared_is_right": shared_is_right})
}

/// Small integers throughout, so that every result is exact in f32.
fn is_right(number: usize, device: &RemoteDevice) -> bool {
    let value = (number % 1000) as f32;
    let mut tensor = Tensor::<Remote, 2>::full([16, 16], value, device);
    let mut expected = value;
    for _ in 0..10 {
        tensor = tensor.clone() + 1.0;
        expected += 1.0;
    }
    tensor.sum().into_scalar() == expected * 256.0
}

/// Pass one tensor through `count` threads; each multiplies by the identity, so that the server is still busy with
/// the last thread's operation when the next thread's arrives, and adds one.
fn hand_over(count: usize, device: &RemoteDevice) -> bool {
    let identity = Tensor::<Remote, 2>::eye(512, device);
    let mut tensor = Tensor::<Remote, 2>::zeros([512, 512], device);
    for hop in 0..count {
        watchdog::step(format!("handing over to thread {hop}"));
        let identity = identity.clone();
        let work = move || tensor.matmul(identity) + 1.0;
        tensor = std::thread::spawn(work)
            .join()
            .expect("the thread's own panic is printed");
    }
    watchdog::step("reading what was handed over");
    let data = tensor.into_data();
    data.iter::<f32>().all(|value| value == count as f32)
}
