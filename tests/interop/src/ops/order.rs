//! Sorting, extremes and their positions.

use super::Case;

pub const CASES: [Case; 29] = [
    ("sort", |x| x.a().sort(1).into_data()),
    ("sort_dim_0", |x| x.a().sort(0).into_data()),
    ("sort_descending", |x| x.a().sort_descending(1).into_data()),
    ("sort_int", |x| x.i().sort(1).into_data()),
    ("argsort", |x| x.a().argsort(1).into_data()),
    ("argsort_descending", |x| {
        x.a().argsort_descending(0).into_data()
    }),
    ("argsort_int", |x| x.i().argsort(1).into_data()),
    ("sort_with_indices_values", |x| {
        x.a().sort_with_indices(1).0.into_data()
    }),
    ("sort_with_indices", |x| {
        x.a().sort_with_indices(1).1.into_data()
    }),
    ("topk", |x| x.a().topk(2, 1).into_data()),
    ("topk_with_indices", |x| {
        x.a().topk_with_indices(2, 1).1.into_data()
    }),
    ("max", |x| x.a().max().into_data()),
    ("min", |x| x.a().min().into_data()),
    ("max_int", |x| x.i().max().into_data()),
    ("min_int", |x| x.i().min().into_data()),
    ("max_dim", |x| x.a().max_dim(1).into_data()),
    ("min_dim", |x| x.a().min_dim(0).into_data()),
    ("max_dim_int", |x| x.i().max_dim(1).into_data()),
    ("max_abs", |x| x.a().max_abs().into_data()),
    ("max_abs_dim", |x| x.a().max_abs_dim(1).into_data()),
    ("argmax", |x| x.a().argmax(1).into_data()),
    ("argmin", |x| x.a().argmin(0).into_data()),
    ("argmax_int", |x| x.i().argmax(1).into_data()),
    ("max_dim_with_indices", |x| {
        x.a().max_dim_with_indices(1).1.into_data()
    }),
    ("min_dim_with_indices", |x| {
        x.a().min_dim_with_indices(1).1.into_data()
    }),
    ("cummax", |x| x.a().cummax(1).into_data()),
    ("cummin", |x| x.a().cummin(1).into_data()),
    ("cummax_int", |x| x.i().cummax(0).into_data()),
    ("median", |x| x.a().median(1).into_data()),
];
