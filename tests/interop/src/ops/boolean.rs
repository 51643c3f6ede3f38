//! Comparisons, logic and masks.

use burn_tensor::{Bool, Tensor};

use super::Case;
use crate::device::Remote;

pub const CASES: [Case; 37] = [
    ("equal", |x| x.i().equal(x.j()).into_data()),
    ("not_equal", |x| x.i().not_equal(x.j()).into_data()),
    ("greater", |x| x.a().greater(x.b()).into_data()),
    ("greater_equal", |x| x.a().greater_equal(x.b()).into_data()),
    ("lower", |x| x.a().lower(x.b()).into_data()),
    ("lower_equal", |x| x.a().lower_equal(x.b()).into_data()),
    ("equal_elem", |x| x.i().equal_elem(3).into_data()),
    ("not_equal_elem", |x| x.i().not_equal_elem(3).into_data()),
    ("greater_elem", |x| x.a().greater_elem(0.3).into_data()),
    ("greater_equal_elem", |x| {
        x.i().greater_equal_elem(2).into_data()
    }),
    ("lower_elem", |x| x.i().lower_elem(2).into_data()),
    ("lower_equal_elem", |x| {
        x.a().lower_equal_elem(0.3).into_data()
    }),
    ("equal_bool", |x| x.mask().equal(x.other_mask()).into_data()),
    ("not", |x| x.mask().bool_not().into_data()),
    ("and", |x| x.mask().bool_and(x.other_mask()).into_data()),
    ("or", |x| x.mask().bool_or(x.other_mask()).into_data()),
    ("xor", |x| x.mask().bool_xor(x.other_mask()).into_data()),
    ("any", |x| x.mask().any().into_data()),
    ("any_dim", |x| x.mask().any_dim(1).into_data()),
    ("all", |x| x.mask().all().into_data()),
    ("all_dim", |x| x.mask().all_dim(1).into_data()),
    ("any_of_ints", |x| x.i().any().into_data()),
    ("all_of_floats", |x| x.a().all().into_data()),
    ("to_int", |x| x.mask().int().into_data()),
    ("to_float", |x| x.mask().float().into_data()),
    ("from_data", |x| {
        Tensor::<Remote, 1, Bool>::from_data([true, false, false, true], &x.device).into_data()
    }),
    ("mask_where", |x| {
        x.a().mask_where(x.mask(), x.b()).into_data()
    }),
    ("mask_fill", |x| x.a().mask_fill(x.mask(), -9.5).into_data()),
    ("mask_where_int", |x| {
        x.i().mask_where(x.mask(), x.j()).into_data()
    }),
    ("mask_fill_int", |x| {
        x.i().mask_fill(x.mask(), 99).into_data()
    }),
    ("argwhere", |x| x.mask().argwhere().into_data()),
    ("is_nan", |x| x.a().log().is_nan().into_data()),
    ("is_inf", |x| (x.a() / (x.a() * 0.0)).is_inf().into_data()),
    ("is_close", |x| {
        x.a().is_close(x.a() + 1e-7, None, None).into_data()
    }),
    ("tril_mask", |x| {
        Tensor::<Remote, 2, Bool>::tril_mask([4, 5], 1, &x.device).into_data()
    }),
    ("cat", |x| {
        Tensor::cat(vec![x.mask(), x.other_mask()], 0).into_data()
    }),
    ("transpose_and_slice", |x| {
        x.mask().transpose().slice([1..3, 0..2]).into_data()
    }),
];
