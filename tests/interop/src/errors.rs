//! What does a program see when an operation fails on the server, and can it go on?

use std::time::Duration;

use burn_tensor::{IndexingUpdateOp, Int, Tensor};
use serde_json::{Value, json};

use crate::arguments::{Arguments, refuse};
use crate::attempt::{Outcome, attempt, catch};
use crate::data::uniform_tensor;
use crate::device::{Remote, RemoteDevice};
use crate::output;

/// An operation that the client lets through, as the indices' values are only known to the server.
type Case = fn(&RemoteDevice) -> Tensor<Remote, 2>;

const CASES: [(&str, Case); 5] = [
    ("select", |device| matrix(device).select(0, indices(device))),
    ("gather", |device| {
        matrix(device).gather(1, indices(device).unsqueeze())
    }),
    ("scatter", |device| {
        let values = Tensor::ones([1, 2], device);
        let indices = indices(device).unsqueeze();
        matrix(device).scatter(1, indices, values, IndexingUpdateOp::Add)
    }),
    ("select_assign", |device| {
        let values = Tensor::ones([2, 4], device);
        matrix(device).select_assign(0, indices(device), values, IndexingUpdateOp::Add)
    }),
    // The operation that is read did not fail itself: it consumed the output of one that did.
    ("consumer_of_failed", |device| {
        matrix(device).select(0, indices(device)) * 2.0 + 1.0
    }),
];

/// `errors ADDRESS [--case NAME] [--wait 5]`
///
/// After each case, whether a new tensor can still be uploaded, used and read.
pub fn run(arguments: &Arguments) -> Value {
    let device = RemoteDevice::new(arguments.word(0, "the server's address"));
    let only: String = arguments.option("--case", String::new());
    let limit = Duration::from_secs_f64(arguments.option("--wait", 5.0));
    if !only.is_empty() && CASES.iter().all(|(name, _)| *name != only) {
        refuse(&format!(
            "--case is one of {:?}",
            CASES.map(|(name, _)| name)
        ));
    }
    let cases: Vec<Value> = CASES
        .into_iter()
        .filter(|(name, _)| only.is_empty() || *name == only)
        .map(|(name, case)| {
            let on_device = device.clone();
            let outcome = attempt(name, limit, move || read(case(&on_device)));
            let usable = is_usable(&device, limit);
            json!({"case": name, "read": outcome.to_json(), "usable_after": usable})
        })
        .collect();
    json!({"usable_before_exit": is_usable(&device, limit), "cases": cases})
}

/// Read twice: once for the error as a value, once for the panic that most programs will see.
fn read(tensor: Tensor<Remote, 2>) -> Value {
    match tensor.clone().try_into_data() {
        Ok(data) => json!({"tensor": output::tensor(&data)}),
        Err(error) => {
            let panic = catch(|| tensor.into_data()).err();
            json!({"error": error.to_string(), "panic": panic})
        }
    }
}

fn is_usable(device: &RemoteDevice, limit: Duration) -> bool {
    let device = device.clone();
    let outcome = attempt("using the session again", limit, move || {
        let sum = (matrix(&device) * 0.0 + 1.5).sum().into_scalar();
        json!(sum == 18.0)
    });
    matches!(outcome, Outcome::Value(Value::Bool(true)))
}

fn matrix(device: &RemoteDevice) -> Tensor<Remote, 2> {
    uniform_tensor([3, 4], 1, 1.0, device)
}

/// The second index is far outside every dimension of [`matrix`].
fn indices(device: &RemoteDevice) -> Tensor<Remote, 1, Int> {
    Tensor::from_ints([1, 1000], device)
}
