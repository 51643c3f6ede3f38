//! How fast is it? One number per measure, with the real client on whichever server is addressed.

use std::time::{Duration, Instant};

use burn_tensor::Tensor;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::data::uniform_tensor;
use crate::device::{Remote, RemoteAutodiff, RemoteDevice, sync};
use crate::train::{Batch, Mlp, Sizes};
use crate::{uploads, watchdog};

/// Operations between two reads of the pipelined measure.
const PIPELINED: usize = 20_000;

/// Round trips that a percentile is taken from.
const ROUND_TRIPS: usize = 2_000;

/// Training steps per repetition.
const STEPS: usize = 500;

/// Waited for before anything is timed: connecting, and the server's first use of its code.
const WARM_UP: usize = 200;

/// `bench ADDRESS [ADDRESS] [--only adds|latency|copies|moves|train] [--megabytes 8] [--repeats 3]`
///
/// Rates are the median of the repetitions, with all of them beside it; moves need the second address.
pub fn run(arguments: &Arguments) -> Value {
    let device = RemoteDevice::new(arguments.word(0, "the server's address"));
    let only: String = arguments.option("--only", String::new());
    let megabytes: usize = arguments.option("--megabytes", 8);
    let repeats: usize = arguments.option("--repeats", 3);
    let target = arguments.optional_word(1).map(RemoteDevice::new);

    let mut results = serde_json::Map::new();
    let mut record = |group: &str, name: &str, measure: &dyn Fn() -> Value| {
        if only.is_empty() || only == group {
            watchdog::step(name);
            results.insert(name.to_string(), measure());
        }
    };
    record("adds", "pipelined_adds_per_second", &|| {
        rate(repeats, || pipelined_adds(&device))
    });
    record("latency", "add_and_read_us", &|| {
        percentiles(|| add_and_read(&device))
    });
    record("copies", "upload_gb_per_second", &|| {
        rate(repeats, || upload(&device, megabytes))
    });
    record("copies", "download_gb_per_second", &|| {
        rate(repeats, || download(&device, megabytes))
    });
    if let Some(target) = &target {
        record("moves", "move_gb_per_second", &|| {
            rate(repeats, || move_large(&device, target, megabytes))
        });
        record("moves", "move_and_sync_us", &|| {
            percentiles(|| move_small(&device, target))
        });
    }
    record("train", "train_steps_per_second", &|| {
        rate(repeats, || train(&device, false))
    });
    record("train", "train_steps_per_second_reading_each", &|| {
        rate(repeats, || train(&device, true))
    });
    json!({"megabytes": megabytes, "repeats": repeats, "results": results})
}

/// The median of `repeats` measurements, after one that is thrown away.
fn rate(repeats: usize, measure: impl Fn() -> f64) -> Value {
    measure();
    let mut all: Vec<f64> = (0..repeats.max(1)).map(|_| measure()).collect();
    all.sort_by(f64::total_cmp);
    json!({"median": all[all.len() / 2], "all": all})
}

/// The median and the 99th percentile of the round trips, in µs.
fn percentiles(prepare: impl Fn() -> Box<dyn FnMut() -> Duration>) -> Value {
    let mut measure = prepare();
    for _ in 0..WARM_UP {
        measure();
    }
    let mut all: Vec<f64> = (0..ROUND_TRIPS)
        .map(|_| measure().as_secs_f64() * 1e6)
        .collect();
    all.sort_by(f64::total_cmp);
    json!({"p50": all[all.len() / 2], "p99": all[all.len() * 99 / 100]})
}

/// Operations per second: adds of [16, 16] where each takes the output of the last, then one read.
fn pipelined_adds(device: &RemoteDevice) -> f64 {
    let mut sum = Tensor::<Remote, 2>::zeros([16, 16], device);
    let one = Tensor::<Remote, 2>::ones([16, 16], device);
    sync(device).expect("the server answers a sync");
    let start = Instant::now();
    for _ in 0..PIPELINED {
        sum = sum + one.clone();
    }
    let data = sum.into_data();
    let seconds = start.elapsed().as_secs_f64();
    assert!(
        data.iter::<f32>().all(|value| value == PIPELINED as f32),
        "the server added wrongly"
    );
    PIPELINED as f64 / seconds
}

fn add_and_read(device: &RemoteDevice) -> Box<dyn FnMut() -> Duration> {
    let left = uniform_tensor::<Remote, 2>([16, 16], 1, 1.0, device);
    let right = uniform_tensor::<Remote, 2>([16, 16], 2, 1.0, device);
    Box::new(move || {
        let start = Instant::now();
        let data = (left.clone() + right.clone()).into_data();
        let duration = start.elapsed();
        assert_eq!(data.num_elements(), 256);
        duration
    })
}

fn upload(device: &RemoteDevice, megabytes: usize) -> f64 {
    let data = uploads::payload(megabytes);
    let start = Instant::now();
    let tensor = Tensor::<Remote, 1>::from_data(data, device);
    sync(device).expect("the server answers a sync");
    let rate = gigabytes_per_second(megabytes, start.elapsed());
    drop(tensor);
    rate
}

fn download(device: &RemoteDevice, megabytes: usize) -> f64 {
    let tensor = Tensor::<Remote, 1>::from_data(uploads::payload(megabytes), device);
    sync(device).expect("the server answers a sync");
    let start = Instant::now();
    let data = tensor.into_data();
    let rate = gigabytes_per_second(megabytes, start.elapsed());
    assert_eq!(data.as_bytes().len(), megabytes << 20);
    rate
}

fn move_large(from: &RemoteDevice, to: &RemoteDevice, megabytes: usize) -> f64 {
    let tensor = Tensor::<Remote, 1>::from_data(uploads::payload(megabytes), from);
    sync(from).expect("the server answers a sync");
    let start = Instant::now();
    let moved = tensor.to_device(to);
    sync(to).expect("the server answers a sync");
    let rate = gigabytes_per_second(megabytes, start.elapsed());
    drop(moved);
    rate
}

fn move_small(from: &RemoteDevice, to: &RemoteDevice) -> Box<dyn FnMut() -> Duration> {
    let tensor = uniform_tensor::<Remote, 2>([16, 16], 1, 1.0, from);
    let to = to.clone();
    Box::new(move || {
        let start = Instant::now();
        let moved = tensor.clone().to_device(&to);
        sync(&to).expect("the server answers a sync");
        let duration = start.elapsed();
        drop(moved);
        duration
    })
}

/// Steps per second of the 784-128-10 MLP on one batch of 64 that is on the server already.
fn train(device: &RemoteDevice, read_each_step: bool) -> f64 {
    let mut mlp = Mlp::<RemoteAutodiff>::new(Sizes::MLP, device);
    let batch = Batch::new(0, 64, Sizes::MLP.inputs, device);
    let first = mlp.step(&batch, 0.01).into_scalar();
    let start = Instant::now();
    let mut last = None;
    for _ in 0..STEPS {
        let loss = mlp.step(&batch, 0.01);
        if read_each_step {
            loss.to_data();
        }
        last = Some(loss);
    }
    let last = last.expect("there are steps").into_scalar();
    let seconds = start.elapsed().as_secs_f64();
    assert!(last < first, "training made it worse: {first} to {last}");
    STEPS as f64 / seconds
}

fn gigabytes_per_second(megabytes: usize, duration: Duration) -> f64 {
    (megabytes << 20) as f64 / 1e9 / duration.as_secs_f64()
}
