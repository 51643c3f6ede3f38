//! Arithmetic, bits, reductions and conversions of integers.

use burn_tensor::{DType, FloatDType, Int, Tensor};

use super::Case;
use crate::device::Remote;

pub const CASES: [Case; 40] = [
    ("add", |x| (x.i() + x.j()).into_data()),
    ("sub", |x| (x.i() - x.j()).into_data()),
    ("mul", |x| (x.i() * x.j()).into_data()),
    ("div", |x| (x.i() / x.j()).into_data()),
    ("remainder", |x| x.i().remainder(x.j()).into_data()),
    ("add_scalar", |x| (x.i() + 3).into_data()),
    ("sub_scalar", |x| (x.i() - 3).into_data()),
    ("mul_scalar", |x| (x.i() * 3).into_data()),
    ("div_scalar", |x| (x.i() / 3).into_data()),
    ("remainder_scalar", |x| {
        x.i().remainder_scalar(3).into_data()
    }),
    ("mul_wraps", |x| (x.i() * 1_000_000_007).into_data()),
    ("neg", |x| x.i().neg().into_data()),
    ("abs", |x| x.i().abs().into_data()),
    ("sign", |x| x.i().sign().into_data()),
    ("powi", |x| x.i().powi(x.indices([3, 4], 4)).into_data()),
    ("powi_scalar", |x| x.i().powi_scalar(3).into_data()),
    ("clamp", |x| x.i().clamp(-3, 4).into_data()),
    ("sum", |x| x.i().sum().into_data()),
    ("sum_dim", |x| x.i().sum_dim(1).into_data()),
    ("mean", |x| x.i().mean().into_data()),
    ("mean_dim", |x| x.i().mean_dim(0).into_data()),
    ("prod", |x| x.j().prod_dim(1).into_data()),
    ("cumsum", |x| x.i().cumsum(1).into_data()),
    ("cumprod", |x| x.j().cumprod(1).into_data()),
    ("matmul", |x| x.i().matmul(x.j().transpose()).into_data()),
    ("bitwise_and", |x| x.i().bitwise_and(x.j()).into_data()),
    ("bitwise_or", |x| x.i().bitwise_or(x.j()).into_data()),
    ("bitwise_xor", |x| x.i().bitwise_xor(x.j()).into_data()),
    ("bitwise_not", |x| x.i().bitwise_not().into_data()),
    ("bitwise_and_scalar", |x| {
        x.i().bitwise_and_scalar(6).into_data()
    }),
    ("left_shift", |x| {
        x.j().bitwise_left_shift(x.j()).into_data()
    }),
    ("right_shift", |x| {
        x.i().bitwise_right_shift(x.j()).into_data()
    }),
    ("left_shift_scalar", |x| {
        x.i().bitwise_left_shift_scalar(2).into_data()
    }),
    ("right_shift_scalar", |x| {
        x.i().bitwise_right_shift_scalar(2).into_data()
    }),
    ("to_float", |x| (x.i().float() / 4.0).into_data()),
    ("to_float_f64", |x| x.i().cast(FloatDType::F64).into_data()),
    ("to_bool", |x| x.i().bool().into_data()),
    ("arange", |x| {
        Tensor::<Remote, 1, Int>::arange(-3..9, &x.device).into_data()
    }),
    ("arange_step", |x| {
        Tensor::<Remote, 1, Int>::arange_step(0..20, 3, &x.device).into_data()
    }),
    ("i64_arithmetic", |x| {
        let data = x.i().into_data().convert_dtype(DType::I64);
        let tensor = Tensor::<Remote, 2, Int>::from_data(data, (&x.device, DType::I64));
        // The client narrows what it reads to i32, so bring the wide numbers back into its range first.
        ((tensor * 3_000_000_000_i64 + 1) / 1_000).into_data()
    }),
];
