//! How do results look? As JSON: tensors with shape, dtype and every value, or with sums and a checksum.

use burn_tensor::TensorData;
use serde_json::{Value, json};

/// The whole tensor. A number that JSON lacks is the string "NaN", "inf" or "-inf".
pub fn tensor(data: &TensorData) -> Value {
    json!({
        "shape": data.shape.to_vec(),
        "dtype": format!("{:?}", data.dtype),
        "values": values(data),
    })
}

/// What identifies a large tensor: its sum, its first eight values and the CRC-32 of its bytes (little endian).
pub fn summary(data: &TensorData) -> Value {
    let sum: f64 = data.iter::<f64>().sum();
    let first: Vec<Value> = data.iter::<f64>().take(8).map(number).collect();
    json!({
        "shape": data.shape.to_vec(),
        "dtype": format!("{:?}", data.dtype),
        "sum": number(sum),
        "first": first,
        "crc32": checksum(data),
    })
}

/// The CRC-32 of the tensor's bytes.
pub fn checksum(data: &TensorData) -> u32 {
    crc32fast::hash(data.as_bytes())
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

fn values(data: &TensorData) -> Vec<Value> {
    if data.dtype.is_float() {
        data.iter::<f64>().map(number).collect()
    } else if data.dtype.is_bool() {
        data.iter::<bool>().map(Value::from).collect()
    } else {
        data.iter::<i64>().map(Value::from).collect()
    }
}
