//! Does each operation give the same numbers? A table of named cases per family of operations.

mod boolean;
mod float;
mod gradient;
mod int;
mod layout;
mod module;
mod order;

use burn_tensor::{Bool, Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::attempt::catch;
use crate::data::{index_tensor, uniform_tensor};
use crate::device::{Remote, RemoteDevice};
use crate::{output, watchdog};

/// A name and what it computes.
type Case = (&'static str, fn(&Inputs) -> TensorData);

/// The families by their prefix.
const FAMILIES: [(&str, &[Case]); 7] = [
    ("float", &float::CASES),
    ("int", &int::CASES),
    ("bool", &boolean::CASES),
    ("layout", &layout::CASES),
    ("order", &order::CASES),
    ("module", &module::CASES),
    ("gradient", &gradient::CASES),
];

/// The tensors that the cases start from, made anew for each case.
struct Inputs {
    device: RemoteDevice,
}

impl Inputs {
    /// Floats in [-2, 2), shape [3, 4].
    fn a(&self) -> Tensor<Remote, 2> {
        uniform_tensor([3, 4], 1, 4.0, &self.device)
    }

    /// Other floats in [-2, 2), shape [3, 4].
    fn b(&self) -> Tensor<Remote, 2> {
        uniform_tensor([3, 4], 2, 4.0, &self.device)
    }

    /// Floats in [0.25, 2.25), shape [3, 4].
    fn positive(&self) -> Tensor<Remote, 2> {
        uniform_tensor::<Remote, 2>([3, 4], 3, 2.0, &self.device) + 1.25
    }

    /// Floats in [-0.5, 0.5) of any shape.
    fn floats<const D: usize>(&self, shape: [usize; D], salt: u32) -> Tensor<Remote, D> {
        uniform_tensor(shape, salt, 1.0, &self.device)
    }

    /// Integers in -10..10, shape [3, 4].
    fn i(&self) -> Tensor<Remote, 2, Int> {
        index_tensor::<Remote, 2>([3, 4], 4, 20, &self.device) - 10
    }

    /// Integers in 1..9, shape [3, 4].
    fn j(&self) -> Tensor<Remote, 2, Int> {
        index_tensor::<Remote, 2>([3, 4], 5, 8, &self.device) + 1
    }

    /// Indices below `below`, of any shape.
    fn indices<const D: usize>(&self, shape: [usize; D], below: u32) -> Tensor<Remote, D, Int> {
        index_tensor(shape, 6, below, &self.device)
    }

    /// Where [`Inputs::a`] is positive, shape [3, 4].
    fn mask(&self) -> Tensor<Remote, 2, Bool> {
        self.a().greater_elem(0.0)
    }

    /// Where [`Inputs::b`] is positive, shape [3, 4].
    fn other_mask(&self) -> Tensor<Remote, 2, Bool> {
        self.b().greater_elem(0.0)
    }
}

/// `ops ADDRESS [--only PART-OF-A-NAME]`: a result or the text of a panic for each `family/name`.
pub fn run(arguments: &Arguments) -> Value {
    let inputs = Inputs {
        device: RemoteDevice::new(arguments.word(0, "the server's address")),
    };
    let only: String = arguments.option("--only", String::new());
    let mut results = serde_json::Map::new();
    for (family, cases) in FAMILIES {
        for (name, case) in cases {
            let name = format!("{family}/{name}");
            if name.contains(&only) {
                watchdog::step(&name);
                let result = match catch(|| case(&inputs)) {
                    Ok(data) => output::tensor(&data),
                    Err(message) => json!({"panic": message}),
                };
                results.insert(name, result);
            }
        }
    }
    json!({"count": results.len(), "results": results})
}
