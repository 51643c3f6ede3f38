//! Devices, and the numbers that go in: those of the programs for 0.21, a 32-bit mixing function of position and salt.

use burn_tensor::remote::{EndpointId, IrohHost, IrohRelays, RemoteHost};
use burn_tensor::{Device, Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::arguments::refuse;

/// Read `ws://host:port`, or `iroh://NODE-ID?addr=IP:PORT`, which is dialled without relays.
fn host(address: &str) -> RemoteHost {
    let Some(rest) = address.strip_prefix("iroh://") else {
        return RemoteHost::websocket(address);
    };
    let (id, query) = rest.split_once('?').unwrap_or((rest, ""));
    let id: EndpointId = id
        .parse()
        .unwrap_or_else(|error| refuse(&format!("{address}: {error}")));
    let mut host = IrohHost::new(id).with_relays(IrohRelays::Disabled);
    for field in query.split('&').filter(|field| !field.is_empty()) {
        let direct = field
            .strip_prefix("addr=")
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| refuse(&format!("{address}: {field} is not addr=IP:PORT")));
        host = host.with_address(direct);
    }
    RemoteHost::iroh(host)
}

/// Connect device `index` of the server at `address`.
pub fn device(address: &str, index: usize) -> Device {
    Device::remote_options(&host(address))
        .device_index(index)
        .init()
        .unwrap_or_else(|error| refuse(&format!("{address}: {error}")))
}

/// Spread `index` and `salt` over 32 bits (the finalizer of MurmurHash3 over their combination).
pub fn mix(index: u32, salt: u32) -> u32 {
    let mut bits = index ^ salt.wrapping_mul(0x9E37_79B9);
    bits ^= bits >> 16;
    bits = bits.wrapping_mul(0x85EB_CA6B);
    bits ^= bits >> 13;
    bits = bits.wrapping_mul(0xC2B2_AE35);
    bits ^ (bits >> 16)
}

/// A number in [-0.5, 0.5) with 24 significant bits, so that it is exact in f32.
pub fn uniform(index: u32, salt: u32) -> f32 {
    (mix(index, salt) >> 8) as f32 / (1 << 24) as f32 - 0.5
}

/// A float tensor of numbers of [`uniform`], each multiplied by `scale`.
pub fn uniform_tensor<const D: usize>(
    shape: [usize; D],
    salt: u32,
    scale: f32,
    device: &Device,
) -> Tensor<D> {
    let count = shape.iter().product::<usize>() as u32;
    let values: Vec<f32> = (0..count)
        .map(|index| uniform(index, salt) * scale)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// An i32 tensor with values in `0..below`.
pub fn index_tensor<const D: usize>(
    shape: [usize; D],
    salt: u32,
    below: u32,
    device: &Device,
) -> Tensor<D, Int> {
    let count = shape.iter().product::<usize>() as u32;
    let values: Vec<i32> = (0..count)
        .map(|index| (mix(index, salt) % below) as i32)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The shape and every value; a number that JSON lacks is the string "NaN", "inf" or "-inf".
pub fn shown(data: &TensorData) -> Value {
    let shape = data.shape().to_vec();
    let wide = data.clone().convert::<f64>();
    let values: Vec<Value> = wide
        .as_slice::<f64>()
        .expect("the data was converted to f64")
        .iter()
        .map(|value| number(*value))
        .collect();
    json!({"shape": shape, "values": values})
}

/// One number, or its name where JSON has none for it.
pub fn number(value: f64) -> Value {
    if value.is_nan() {
        json!("NaN")
    } else if value.is_infinite() {
        json!(if value > 0.0 { "inf" } else { "-inf" })
    } else {
        json!(value)
    }
}

/// The CRC-32 of the tensor's bytes.
pub fn checksum(data: &TensorData) -> u32 {
    crc32fast::hash(data.as_bytes())
}
