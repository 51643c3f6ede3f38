//! What becomes of large uploads, and of those whose client vanishes?

use std::io::Write;

use burn_tensor::{Tensor, TensorData};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::data::uniform_values;
use crate::device::{Remote, RemoteDevice, sync};
use crate::{output, watchdog};

/// `upload MEGABYTES ADDRESS`: there and back; the checksums and the sum that the server computed.
pub fn upload(arguments: &Arguments) -> Value {
    let megabytes = arguments.number(0, "megabytes", 8);
    let device = RemoteDevice::new(arguments.word(1, "the server's address"));
    let data = payload(megabytes);
    let sent = output::checksum(&data);
    watchdog::step(format!("uploading {megabytes} MB"));
    let tensor = Tensor::<Remote, 1>::from_data(data, &device);
    let largest = tensor.clone().abs().max().into_scalar();
    watchdog::step(format!("downloading {megabytes} MB"));
    let received = tensor.into_data();
    json!({"megabytes": megabytes, "sent": sent, "received": output::checksum(&received),
           "equal": sent == output::checksum(&received), "largest": largest})
}

/// `hold MEGABYTES ADDRESS`: upload, print `ready`, wait for the end of stdin (or for a kill), use the tensor again.
pub fn hold(arguments: &Arguments) -> Value {
    let megabytes = arguments.number(0, "megabytes", 8);
    let device = RemoteDevice::new(arguments.word(1, "the server's address"));
    watchdog::step(format!("uploading {megabytes} MB"));
    let tensor = Tensor::<Remote, 1>::from_data(payload(megabytes), &device);
    sync(&device).expect("the server answers a sync");
    say("ready");
    watchdog::step("waiting for the end of stdin");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("stdin can be read");
    watchdog::step("using the tensor again");
    let largest = tensor.abs().max().into_scalar();
    json!({"megabytes": megabytes, "largest": largest})
}

/// `upload-loop MEGABYTES ADDRESS`: print `uploading`, upload and drop without end, to be killed in the middle.
pub fn upload_without_end(arguments: &Arguments) -> Value {
    let megabytes = arguments.number(0, "megabytes", 8);
    let device = RemoteDevice::new(arguments.word(1, "the server's address"));
    let data = payload(megabytes);
    sync(&device).expect("the server answers a sync");
    say("uploading");
    watchdog::step("uploading without end");
    loop {
        drop(Tensor::<Remote, 1>::from_data(data.clone(), &device));
    }
}

/// Megabytes of 2^20 bytes, f32 by the formula of [`crate::data`] with salt 7.
pub fn payload(megabytes: usize) -> TensorData {
    let count = megabytes << 18;
    TensorData::new(uniform_values(count, 7, 1.0), [count])
}

fn say(word: &str) {
    println!("{word}");
    std::io::stdout().flush().expect("stdout is open");
}
