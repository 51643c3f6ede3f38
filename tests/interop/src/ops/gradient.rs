//! Gradients: the client records them, so the server sees the backward operations as ordinary ones.

use burn_tensor::module::{
    avg_pool2d, conv_transpose2d, conv2d, embedding, interpolate, max_pool2d,
};
use burn_tensor::ops::{ConvOptions, ConvTransposeOptions, InterpolateMode, InterpolateOptions};
use burn_tensor::{Tensor, TensorData, activation};

use super::{Case, Inputs};
use crate::device::{Remote, RemoteAutodiff};

/// A tensor whose gradient is asked for.
fn leaf<const D: usize>(
    inputs: &Inputs,
    shape: [usize; D],
    salt: u32,
) -> Tensor<RemoteAutodiff, D> {
    Tensor::from_inner(inputs.floats(shape, salt)).require_grad()
}

/// The gradient of the sum of squares of `output` by `leaf`.
fn gradient<const D: usize, const L: usize>(
    output: Tensor<RemoteAutodiff, D>,
    leaf: &Tensor<RemoteAutodiff, L>,
) -> TensorData {
    let gradients = output.square().sum().backward();
    let gradient: Tensor<Remote, L> = leaf.grad(&gradients).expect("the leaf takes part");
    gradient.into_data()
}

pub const CASES: [Case; 19] = [
    ("matmul", |x| {
        let (left, right) = (leaf(x, [3, 4], 1), leaf(x, [4, 5], 2));
        gradient(left.clone().matmul(right), &left)
    }),
    ("div", |x| {
        let (left, right) = (leaf(x, [3, 4], 1), leaf(x, [3, 4], 2));
        gradient(left / (right.clone() + 2.0), &right)
    }),
    ("broadcast", |x| {
        let (left, right) = (leaf(x, [3, 4], 1), leaf(x, [1, 4], 2));
        gradient(left * right.clone(), &right)
    }),
    ("exp_log_sqrt", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(((input.clone().exp() + 1.0).log() + 1.0).sqrt(), &input)
    }),
    ("relu", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(activation::relu(input.clone()), &input)
    }),
    ("gelu", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(activation::gelu(input.clone()), &input)
    }),
    ("sigmoid", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(activation::sigmoid(input.clone()), &input)
    }),
    ("softmax", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(activation::softmax(input.clone(), 1), &input)
    }),
    ("gather", |x| {
        let input = leaf(x, [3, 4], 1);
        let indices = Tensor::from_inner(x.indices([3, 6], 4));
        gradient(input.clone().gather(1, indices), &input)
    }),
    ("select", |x| {
        let input = leaf(x, [3, 4], 1);
        let indices = Tensor::from_inner(x.indices([5], 3));
        gradient(input.clone().select(0, indices), &input)
    }),
    ("slice", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(input.clone().slice([1..3, 0..2]), &input)
    }),
    ("max_dim", |x| {
        let input = leaf(x, [3, 4], 1);
        gradient(input.clone().max_dim(1), &input)
    }),
    ("embedding", |x| {
        let weights = leaf(x, [7, 4], 1);
        let indices = Tensor::from_inner(x.indices([2, 3], 7));
        gradient(embedding(weights.clone(), indices), &weights)
    }),
    ("conv2d_input", |x| {
        let (input, weight) = (leaf(x, [2, 3, 7, 8], 1), leaf(x, [4, 3, 3, 3], 2));
        let options = ConvOptions::new([2, 1], [1, 1], [1, 1], 1);
        gradient(conv2d(input.clone(), weight, None, options), &input)
    }),
    ("conv2d_weight", |x| {
        let (input, weight) = (leaf(x, [2, 3, 7, 8], 1), leaf(x, [4, 3, 3, 3], 2));
        let options = ConvOptions::new([2, 1], [1, 1], [1, 1], 1);
        gradient(conv2d(input, weight.clone(), None, options), &weight)
    }),
    ("conv_transpose2d_weight", |x| {
        let (input, weight) = (leaf(x, [2, 3, 4, 5], 1), leaf(x, [3, 2, 3, 3], 2));
        let options = ConvTransposeOptions::new([2, 2], [1, 1], [0, 0], [1, 1], 1);
        gradient(
            conv_transpose2d(input, weight.clone(), None, options),
            &weight,
        )
    }),
    ("max_pool2d", |x| {
        let input = leaf(x, [2, 3, 6, 6], 1);
        let output = max_pool2d(input.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
        gradient(output, &input)
    }),
    ("avg_pool2d", |x| {
        let input = leaf(x, [2, 3, 7, 7], 1);
        let output = avg_pool2d(input.clone(), [3, 3], [2, 2], [1, 1], true, false);
        gradient(output, &input)
    }),
    ("interpolate", |x| {
        let input = leaf(x, [1, 2, 4, 4], 1);
        let options = InterpolateOptions::new(InterpolateMode::Nearest);
        gradient(interpolate(input.clone(), [8, 8], options), &input)
    }),
];
