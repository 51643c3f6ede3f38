//! How fast is it? One number per measure, with the real client on whichever server is addressed.

use std::time::{Duration, Instant};

use burn_tensor::Tensor;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::data::{device, uniform_tensor};
use crate::train::{Batch, Mlp};
use crate::watchdog;

const PIPELINED: usize = 20_000;
const ROUND_TRIPS: usize = 1_000;
const STEPS: usize = 300;
const MOVES: usize = 300;

/// `bench ADDRESS [ADDRESS] [--megabytes 8] [--repeats 3]`: medians; moves need the second address.
pub fn run(arguments: &Arguments) -> Value {
    let here = device(arguments.word(0, "the server's address"), 0);
    let there = arguments.optional_word(1).map(|address| device(address, 0));
    let repeats: usize = arguments.option("--repeats", 3);
    let megabytes: usize = arguments.option("--megabytes", 8);
    let elements = megabytes << 18;
    let mut results = serde_json::Map::new();
    let mut record = |name: &str, measure: &dyn Fn() -> f64| {
        watchdog::step(name);
        measure();
        let mut all: Vec<f64> = (0..repeats.max(1)).map(|_| measure()).collect();
        all.sort_by(f64::total_cmp);
        results.insert(name.to_string(), json!(all[all.len() / 2]));
    };
    record("adds_per_second", &|| {
        let one = uniform_tensor::<2>([16, 16], 1, 1.0, &here);
        let mut x = one.clone();
        here.sync().expect("the session lives");
        let start = Instant::now();
        for _ in 0..PIPELINED {
            x = x + one.clone();
        }
        here.sync().expect("the session lives");
        PIPELINED as f64 / start.elapsed().as_secs_f64()
    });
    record("add_and_read_p50_us", &|| {
        let one = uniform_tensor::<2>([16, 16], 1, 1.0, &here);
        median((0..ROUND_TRIPS).map(|_| {
            let start = Instant::now();
            let _ = (one.clone() + 1.0).into_data();
            start.elapsed()
        }))
    });
    record("upload_gb_per_second", &|| {
        let data = uniform_tensor::<1>([elements], 1, 1.0, &here).into_data();
        let start = Instant::now();
        let _x = Tensor::<1>::from_data(data, &here);
        here.sync().expect("the session lives");
        (elements * 4) as f64 / start.elapsed().as_secs_f64() / 1e9
    });
    record("download_gb_per_second", &|| {
        let x = Tensor::<1>::ones([elements], &here);
        here.sync().expect("the session lives");
        let start = Instant::now();
        let _ = x.into_data();
        (elements * 4) as f64 / start.elapsed().as_secs_f64() / 1e9
    });
    if let Some(there) = &there {
        record("move_and_sync_p50_us", &|| {
            let x = uniform_tensor::<2>([16, 16], 1, 1.0, &here);
            median((0..MOVES).map(|_| {
                let start = Instant::now();
                let _moved = x.clone().to_device(there);
                there.sync().expect("the session lives");
                start.elapsed()
            }))
        });
    }
    for (name, reads) in [
        ("train_steps_per_second", false),
        ("train_steps_per_second_reading_each", true),
    ] {
        record(name, &|| {
            let batch = Batch::new(0, 64, 784, &here);
            let mut mlp = Mlp::new(784, 128, &here);
            let start = Instant::now();
            for _ in 0..STEPS {
                let loss = mlp.step(&batch, 0.1);
                if reads {
                    let _ = loss.into_scalar::<f32>();
                }
            }
            here.sync().expect("the session lives");
            STEPS as f64 / start.elapsed().as_secs_f64()
        });
    }
    json!({"megabytes": megabytes, "results": results})
}

fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut all: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e6).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
