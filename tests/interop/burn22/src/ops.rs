//! Does each operation that 0.22 added give the same numbers?

use burn_tensor::activation;
use burn_tensor::module;
use burn_tensor::ops::{InterpolateMode, InterpolateOptions, PadMode, UnfoldOptions};
use burn_tensor::{Device, Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::attempt::catch;
use crate::data::{device, index_tensor, shown, uniform_tensor};
use crate::watchdog;

/// A name and what it computes.
type Case = (&'static str, fn(&Device) -> TensorData);

fn a(device: &Device) -> Tensor<2> {
    uniform_tensor([3, 4], 1, 4.0, device)
}

fn b(device: &Device) -> Tensor<2> {
    uniform_tensor([3, 4], 2, 4.0, device)
}

fn i(device: &Device) -> Tensor<2, Int> {
    index_tensor::<2>([3, 4], 3, 20, device) - 10
}

/// The gradient of the sum of squares of `function` at a leaf.
fn gradient(device: &Device, function: fn(Tensor<2>) -> Tensor<2>) -> TensorData {
    let leaf = a(&device.clone().autodiff()).require_grad();
    let gradients = function(leaf.clone()).square().sum().backward();
    leaf.grad(&gradients)
        .expect("the leaf takes part")
        .into_data()
}

const CASES: [Case; 50] = [
    ("relu", |d| activation::relu(a(d)).into_data()),
    ("leaky_relu", |d| {
        activation::leaky_relu(a(d), 0.1).into_data()
    }),
    ("prelu", |d| {
        activation::prelu(a(d), uniform_tensor([1], 9, 1.0, d)).into_data()
    }),
    ("gelu", |d| activation::gelu(a(d)).into_data()),
    ("sigmoid", |d| activation::sigmoid(a(d)).into_data()),
    ("hard_sigmoid", |d| {
        activation::hard_sigmoid(a(d), 0.2, 0.5).into_data()
    }),
    ("log_sigmoid", |d| activation::log_sigmoid(a(d)).into_data()),
    ("softmax", |d| activation::softmax(a(d), 1).into_data()),
    ("log_softmax", |d| {
        activation::log_softmax(a(d), 0).into_data()
    }),
    ("softmin", |d| activation::softmin(a(d), 1).into_data()),
    ("silu", |d| activation::silu(a(d)).into_data()),
    ("mish", |d| activation::mish(a(d)).into_data()),
    ("neg", |d| a(d).neg().into_data()),
    ("neg_int", |d| i(d).neg().into_data()),
    ("sign", |d| a(d).sign().into_data()),
    ("sign_int", |d| i(d).sign().into_data()),
    ("clamp_min", |d| a(d).clamp_min(0.1).into_data()),
    ("clamp_max", |d| a(d).clamp_max(0.1).into_data()),
    ("hypot", |d| a(d).hypot(b(d)).into_data()),
    ("not_equal", |d| {
        i(d).not_equal(i(d).flip([0])).int().into_data()
    }),
    ("not_equal_elem", |d| {
        i(d).not_equal_elem(-3).int().into_data()
    }),
    ("xor", |d| {
        a(d).greater_elem(0.0)
            .bool_xor(b(d).greater_elem(0.0))
            .int()
            .into_data()
    }),
    ("all", |d| a(d).greater_elem(0.0).all().int().into_data()),
    ("any", |d| a(d).greater_elem(0.0).any().int().into_data()),
    ("all_dim", |d| {
        a(d).greater_elem(-1.0).all_dim(1).int().into_data()
    }),
    ("any_dim", |d| {
        a(d).greater_elem(1.0).any_dim(0).int().into_data()
    }),
    ("any_float", |d| (a(d) * 0.0).any().int().into_data()),
    ("all_int", |d| i(d).all_dim(1).int().into_data()),
    ("sum_dims", |d| {
        uniform_tensor([2, 3, 4], 5, 1.0, d)
            .sum_dims(&[0, 2])
            .into_data()
    }),
    ("sort", |d| a(d).sort(1).into_data()),
    ("sort_descending", |d| a(d).sort_descending(0).into_data()),
    ("sort_int", |d| i(d).sort(1).into_data()),
    ("argsort", |d| a(d).argsort(1).into_data()),
    ("argsort_descending", |d| {
        a(d).argsort_descending(0).into_data()
    }),
    ("sort_with_indices", |d| {
        a(d).sort_with_indices(1).1.into_data()
    }),
    ("topk_with_indices", |d| {
        a(d).topk_with_indices(2, 1).1.into_data()
    }),
    ("pad_constant", |d| {
        a(d).pad([(1, 0), (2, 3)], PadMode::Constant(1.5))
            .into_data()
    }),
    ("pad_reflect", |d| {
        a(d).pad([(1, 0), (2, 3)], PadMode::Reflect).into_data()
    }),
    ("pad_edge", |d| {
        a(d).pad([(1, 0), (2, 3)], PadMode::Edge).into_data()
    }),
    ("layer_norm", |d| {
        let (gamma, beta) = (
            uniform_tensor([4], 6, 1.0, d),
            uniform_tensor([4], 7, 1.0, d),
        );
        module::layer_norm(a(d), gamma, Some(beta), 1e-5).into_data()
    }),
    ("batch_norm", |d| {
        let [gamma, beta, mean, variance] =
            [6, 7, 8, 9].map(|salt| uniform_tensor([4], salt, 1.0, d));
        module::batch_norm(a(d), gamma, beta, mean, variance.abs(), 1e-5).into_data()
    }),
    ("unfold4d", |d| {
        let options = UnfoldOptions::new([2, 1], [1, 0], [1, 2]);
        module::unfold4d(uniform_tensor([2, 3, 5, 6], 1, 1.0, d), [2, 3], options).into_data()
    }),
    ("adaptive_avg_pool3d", |d| {
        module::adaptive_avg_pool3d(uniform_tensor([1, 2, 4, 5, 6], 1, 1.0, d), [2, 3, 4])
            .into_data()
    }),
    ("gradient_relu", |d| gradient(d, activation::relu)),
    ("gradient_gelu", |d| gradient(d, activation::gelu)),
    ("gradient_sigmoid", |d| gradient(d, activation::sigmoid)),
    ("gradient_log_sigmoid", |d| {
        gradient(d, activation::log_sigmoid)
    }),
    ("gradient_softmax", |d| {
        gradient(d, |x| activation::softmax(x, 1))
    }),
    ("gradient_pad", |d| {
        gradient(d, |x| x.pad([(1, 0), (2, 3)], PadMode::Reflect))
    }),
    // The last one: the CPU backend of 0.22.1 does not have it, and its panic ends the session.
    ("interpolate_nearest_exact", |d| {
        let options =
            InterpolateOptions::new(InterpolateMode::NearestExact).with_output_size([7, 3]);
        let image = uniform_tensor([1, 2, 4, 5], 1, 1.0, d);
        module::interpolate(image, options).into_data()
    }),
];

/// `ops ADDRESS [--only PART-OF-A-NAME]`
pub fn run(arguments: &Arguments) -> Value {
    let device = device(arguments.word(0, "the server's address"), 0);
    let only: String = arguments.option("--only", String::new());
    let mut results = serde_json::Map::new();
    for (name, compute) in CASES {
        if name.contains(&only) {
            watchdog::step(name);
            let result = match catch(|| compute(&device)) {
                Ok(data) => shown(&data),
                Err(message) => json!({"panic": message}),
            };
            results.insert(name.to_string(), result);
        }
    }
    json!({"count": results.len(), "results": results})
}
