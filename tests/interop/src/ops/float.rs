//! Arithmetic, functions and reductions of floats.

use burn_tensor::{DType, FloatDType, IntDType, Tensor};

use super::Case;

pub const CASES: [Case; 68] = [
    ("add", |x| (x.a() + x.b()).into_data()),
    ("sub", |x| (x.a() - x.b()).into_data()),
    ("mul", |x| (x.a() * x.b()).into_data()),
    ("div", |x| (x.a() / x.b()).into_data()),
    ("remainder", |x| x.a().remainder(x.positive()).into_data()),
    ("add_scalar", |x| (x.a() + 1.5).into_data()),
    ("sub_scalar", |x| (x.a() - 1.5).into_data()),
    ("mul_scalar", |x| (x.a() * 1.5).into_data()),
    ("div_scalar", |x| (x.a() / 1.5).into_data()),
    ("remainder_scalar", |x| {
        x.a().remainder_scalar(0.7).into_data()
    }),
    ("add_broadcast", |x| {
        (x.a() + x.floats([1, 4], 9)).into_data()
    }),
    ("neg", |x| x.a().neg().into_data()),
    ("abs", |x| x.a().abs().into_data()),
    ("sign", |x| x.a().sign().into_data()),
    ("recip", |x| x.positive().recip().into_data()),
    ("exp", |x| x.a().exp().into_data()),
    ("log", |x| x.positive().log().into_data()),
    ("log_of_negative", |x| x.a().log().into_data()),
    ("log1p", |x| x.positive().log1p().into_data()),
    ("sqrt", |x| x.positive().sqrt().into_data()),
    ("square", |x| x.a().square().into_data()),
    ("erf", |x| x.a().erf().into_data()),
    ("sin", |x| x.a().sin().into_data()),
    ("cos", |x| x.a().cos().into_data()),
    ("tan", |x| x.floats([3, 4], 8).tan().into_data()),
    ("sinh", |x| x.a().sinh().into_data()),
    ("cosh", |x| x.a().cosh().into_data()),
    ("tanh", |x| x.a().tanh().into_data()),
    ("asin", |x| x.floats([3, 4], 8).asin().into_data()),
    ("acos", |x| x.floats([3, 4], 8).acos().into_data()),
    ("atan", |x| x.a().atan().into_data()),
    ("asinh", |x| x.a().asinh().into_data()),
    ("acosh", |x| (x.positive() + 1.0).acosh().into_data()),
    ("atanh", |x| x.floats([3, 4], 8).atanh().into_data()),
    ("atan2", |x| x.a().atan2(x.b()).into_data()),
    ("round", |x| x.a().round().into_data()),
    ("floor", |x| x.a().floor().into_data()),
    ("ceil", |x| x.a().ceil().into_data()),
    ("trunc", |x| x.a().trunc().into_data()),
    ("powf", |x| x.positive().powf(x.b()).into_data()),
    ("powf_scalar", |x| x.positive().powf_scalar(1.7).into_data()),
    ("powi_scalar", |x| x.a().powi_scalar(3).into_data()),
    ("clamp", |x| x.a().clamp(-0.5, 0.75).into_data()),
    ("clamp_min", |x| x.a().clamp_min(0.1).into_data()),
    ("clamp_max", |x| x.a().clamp_max(0.1).into_data()),
    ("max_pair", |x| x.a().max_pair(x.b()).into_data()),
    ("min_pair", |x| x.a().min_pair(x.b()).into_data()),
    ("sum", |x| x.a().sum().into_data()),
    ("sum_dim", |x| x.a().sum_dim(0).into_data()),
    ("mean", |x| x.a().mean().into_data()),
    ("mean_dim", |x| x.a().mean_dim(1).into_data()),
    ("prod", |x| x.positive().prod().into_data()),
    ("prod_dim", |x| x.a().prod_dim(1).into_data()),
    ("var", |x| x.a().var(1).into_data()),
    ("var_bias", |x| x.a().var_bias(1).into_data()),
    ("cumsum", |x| x.a().cumsum(1).into_data()),
    ("cumprod", |x| x.a().cumprod(0).into_data()),
    ("matmul", |x| x.a().matmul(x.b().transpose()).into_data()),
    ("matmul_batched", |x| {
        let (left, right) = (x.floats([2, 5, 7], 1), x.floats([2, 7, 3], 2));
        left.matmul(right).into_data()
    }),
    ("matmul_broadcast", |x| {
        let (left, right) = (x.floats([2, 3, 5, 7], 1), x.floats([1, 3, 7, 4], 2));
        left.matmul(right).into_data()
    }),
    ("matmul_large", |x| {
        let (left, right) = (x.floats([130, 257], 1), x.floats([257, 70], 2));
        left.matmul(right).into_data()
    }),
    ("cross", |x| {
        let (left, right) = (x.floats([4, 3], 1), x.floats([4, 3], 2));
        left.cross(right, 1).into_data()
    }),
    ("to_int", |x| (x.a() * 10.0).int().into_data()),
    ("to_int_i64", |x| {
        (x.a() * 10.0).cast(IntDType::I64).into_data()
    }),
    ("cast_f64", |x| x.a().cast(FloatDType::F64).into_data()),
    ("cast_f16", |x| x.a().cast(FloatDType::F16).into_data()),
    ("cast_bf16_and_back", |x| {
        let narrow = x.a().cast(FloatDType::BF16) * 3.0;
        narrow.cast(FloatDType::F32).into_data()
    }),
    ("f64_arithmetic", |x| {
        let data = x.a().into_data().convert_dtype(DType::F64);
        let tensor = Tensor::<crate::device::Remote, 2>::from_data(data, (&x.device, DType::F64));
        (tensor.exp() / 3.0).sum_dim(0).into_data()
    }),
];
