//! Convolutions, pooling, activations and the other parts of neural networks.

use burn_tensor::activation;
use burn_tensor::module::*;
use burn_tensor::ops::{
    ConvOptions, ConvTransposeOptions, DeformConvOptions, GridSampleOptions, InterpolateMode,
    InterpolateOptions, UnfoldOptions,
};

use super::Case;

pub const CASES: [Case; 43] = [
    ("relu", |x| activation::relu(x.a()).into_data()),
    ("leaky_relu", |x| {
        activation::leaky_relu(x.a(), 0.1).into_data()
    }),
    ("gelu", |x| activation::gelu(x.a()).into_data()),
    ("gelu_approximate", |x| {
        activation::gelu_approximate(x.a()).into_data()
    }),
    ("prelu", |x| {
        activation::prelu(x.a(), x.floats([1], 9)).into_data()
    }),
    ("softmax", |x| activation::softmax(x.a(), 1).into_data()),
    ("log_softmax", |x| {
        activation::log_softmax(x.a(), 1).into_data()
    }),
    ("softplus", |x| activation::softplus(x.a(), 1.5).into_data()),
    ("sigmoid", |x| activation::sigmoid(x.a()).into_data()),
    ("log_sigmoid", |x| {
        activation::log_sigmoid(x.a()).into_data()
    }),
    ("hard_sigmoid", |x| {
        activation::hard_sigmoid(x.a(), 0.2, 0.5).into_data()
    }),
    ("silu", |x| activation::silu(x.a()).into_data()),
    ("mish", |x| activation::mish(x.a()).into_data()),
    ("elu", |x| activation::elu(x.a(), 1.2).into_data()),
    ("glu", |x| activation::glu(x.a(), 1).into_data()),
    ("linear", |x| {
        let (weight, bias) = (x.floats([4, 5], 2), x.floats([5], 3));
        linear(x.a(), weight, Some(bias)).into_data()
    }),
    ("embedding", |x| {
        embedding(x.floats([7, 4], 1), x.indices([2, 3], 7)).into_data()
    }),
    ("attention", |x| {
        let [query, key, value] = [1, 2, 3].map(|salt| x.floats([2, 2, 5, 4], salt));
        attention(query, key, value, None, None, Default::default()).into_data()
    }),
    ("conv1d", |x| {
        let (input, weight, bias) = (
            x.floats([2, 3, 9], 1),
            x.floats([4, 3, 3], 2),
            x.floats([4], 3),
        );
        conv1d(
            input,
            weight,
            Some(bias),
            ConvOptions::new([2], [1], [1], 1),
        )
        .into_data()
    }),
    ("conv2d", |x| {
        let (input, weight) = (x.floats([2, 3, 8, 9], 1), x.floats([4, 3, 3, 3], 2));
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        conv2d(input, weight, Some(x.floats([4], 3)), options).into_data()
    }),
    ("conv2d_stride_dilation", |x| {
        let (input, weight) = (x.floats([2, 3, 11, 12], 1), x.floats([4, 3, 3, 2], 2));
        let options = ConvOptions::new([2, 1], [0, 1], [2, 2], 1);
        conv2d(input, weight, None, options).into_data()
    }),
    ("conv2d_groups", |x| {
        let (input, weight) = (x.floats([1, 4, 6, 6], 1), x.floats([8, 2, 3, 3], 2));
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 2);
        conv2d(input, weight, None, options).into_data()
    }),
    ("conv3d", |x| {
        let (input, weight) = (x.floats([1, 2, 5, 5, 5], 1), x.floats([3, 2, 2, 3, 2], 2));
        let options = ConvOptions::new([1, 1, 2], [0, 1, 0], [1, 1, 1], 1);
        conv3d(input, weight, None, options).into_data()
    }),
    ("deform_conv2d", |x| {
        let (input, weight) = (x.floats([1, 2, 5, 5], 1), x.floats([3, 2, 3, 3], 2));
        let (offset, mask) = (x.floats([1, 18, 3, 3], 4), x.floats([1, 9, 3, 3], 5));
        let options = DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1);
        deform_conv2d(input, offset, weight, Some(mask), None, options).into_data()
    }),
    ("conv_transpose1d", |x| {
        let (input, weight) = (x.floats([2, 3, 5], 1), x.floats([3, 2, 3], 2));
        let options = ConvTransposeOptions::new([2], [1], [1], [1], 1);
        conv_transpose1d(input, weight, None, options).into_data()
    }),
    ("conv_transpose2d", |x| {
        let (input, weight) = (x.floats([2, 3, 4, 5], 1), x.floats([3, 2, 3, 3], 2));
        let options = ConvTransposeOptions::new([2, 2], [1, 1], [1, 0], [1, 1], 1);
        conv_transpose2d(input, weight, Some(x.floats([2], 3)), options).into_data()
    }),
    ("conv_transpose3d", |x| {
        let (input, weight) = (x.floats([1, 2, 3, 3, 3], 1), x.floats([2, 2, 2, 2, 2], 2));
        let options = ConvTransposeOptions::new([1, 2, 1], [0, 0, 1], [0, 1, 0], [1, 1, 1], 1);
        conv_transpose3d(input, weight, None, options).into_data()
    }),
    ("unfold4d", |x| {
        let options = UnfoldOptions::new([1, 2], [1, 0], [1, 1]);
        unfold4d(x.floats([1, 2, 5, 6], 1), [2, 3], options).into_data()
    }),
    ("max_pool1d", |x| {
        max_pool1d(x.floats([2, 3, 9], 1), 3, 2, 1, 1, false).into_data()
    }),
    ("max_pool2d", |x| {
        max_pool2d(
            x.floats([2, 3, 7, 8], 1),
            [3, 2],
            [2, 2],
            [1, 0],
            [1, 1],
            false,
        )
        .into_data()
    }),
    ("max_pool2d_ceil", |x| {
        max_pool2d(
            x.floats([1, 2, 6, 7], 1),
            [3, 3],
            [2, 2],
            [0, 0],
            [1, 1],
            true,
        )
        .into_data()
    }),
    ("max_pool1d_indices", |x| {
        let (_, indices) = max_pool1d_with_indices(x.floats([2, 3, 9], 1), 3, 2, 1, 1, false);
        indices.into_data()
    }),
    ("max_pool2d_indices", |x| {
        let input = x.floats([2, 3, 7, 8], 1);
        let (_, indices) = max_pool2d_with_indices(input, [3, 2], [2, 2], [1, 0], [1, 1], false);
        indices.into_data()
    }),
    ("avg_pool1d", |x| {
        avg_pool1d(x.floats([2, 3, 9], 1), 3, 2, 1, true, false).into_data()
    }),
    ("avg_pool2d", |x| {
        avg_pool2d(
            x.floats([2, 3, 7, 8], 1),
            [3, 2],
            [2, 2],
            [1, 0],
            false,
            false,
        )
        .into_data()
    }),
    ("adaptive_avg_pool1d", |x| {
        adaptive_avg_pool1d(x.floats([2, 3, 9], 1), 4).into_data()
    }),
    ("adaptive_avg_pool2d", |x| {
        adaptive_avg_pool2d(x.floats([2, 3, 7, 8], 1), [3, 4]).into_data()
    }),
    ("interpolate_nearest", |x| {
        let options = InterpolateOptions::new(InterpolateMode::Nearest);
        interpolate(x.floats([1, 2, 4, 5], 1), [7, 6], options).into_data()
    }),
    ("interpolate_bilinear", |x| {
        let options = InterpolateOptions::new(InterpolateMode::Bilinear);
        interpolate(x.floats([1, 2, 4, 5], 1), [7, 6], options).into_data()
    }),
    ("interpolate_bilinear_half_pixel", |x| {
        let options = InterpolateOptions::new(InterpolateMode::Bilinear).with_align_corners(false);
        interpolate(x.floats([1, 2, 4, 5], 1), [7, 6], options).into_data()
    }),
    ("interpolate_bicubic", |x| {
        let options = InterpolateOptions::new(InterpolateMode::Bicubic);
        interpolate(x.floats([1, 2, 4, 5], 1), [7, 6], options).into_data()
    }),
    ("interpolate_lanczos3", |x| {
        let options = InterpolateOptions::new(InterpolateMode::Lanczos3);
        interpolate(x.floats([1, 2, 8, 9], 1), [5, 12], options).into_data()
    }),
    ("grid_sample_2d", |x| {
        let grid = x.floats([1, 3, 4, 2], 2) * 2.0;
        let options = GridSampleOptions::new(InterpolateMode::Bilinear);
        x.floats([1, 2, 5, 6], 1)
            .grid_sample_2d(grid, options)
            .into_data()
    }),
];
