//! Creation, shapes, slices, gather and scatter.

use burn_tensor::{IndexingUpdateOp, Int, Tensor, s};

use super::Case;
use crate::device::Remote;

pub const CASES: [Case; 52] = [
    ("zeros", |x| {
        Tensor::<Remote, 2>::zeros([2, 3], &x.device).into_data()
    }),
    ("ones", |x| {
        Tensor::<Remote, 2>::ones([2, 3], &x.device).into_data()
    }),
    ("full", |x| {
        Tensor::<Remote, 2>::full([2, 3], 2.5, &x.device).into_data()
    }),
    ("full_int", |x| {
        Tensor::<Remote, 2, Int>::full([2, 3], -7, &x.device).into_data()
    }),
    ("eye", |x| {
        Tensor::<Remote, 2>::eye(3, &x.device).into_data()
    }),
    ("empty_of_no_elements", |x| x.floats([0, 4], 1).into_data()),
    ("reshape", |x| x.a().reshape([2, 6]).into_data()),
    ("transpose", |x| x.a().transpose().into_data()),
    ("swap_dims", |x| {
        x.floats([2, 3, 4], 1).swap_dims(0, 2).into_data()
    }),
    ("permute", |x| {
        x.floats([2, 3, 4], 1).permute([2, 0, 1]).into_data()
    }),
    ("flip", |x| x.a().flip([0, 1]).into_data()),
    ("flatten", |x| {
        x.floats([2, 3, 4], 1).flatten::<2>(1, 2).into_data()
    }),
    ("squeeze", |x| {
        x.floats([1, 3, 1], 1).squeeze::<1>().into_data()
    }),
    ("unsqueeze", |x| x.a().unsqueeze::<4>().into_data()),
    ("expand", |x| {
        x.floats([3, 1], 1).expand([2, 3, 4]).into_data()
    }),
    ("repeat_dim", |x| x.a().repeat_dim(1, 3).into_data()),
    ("repeat", |x| x.a().repeat(&[2, 2]).into_data()),
    ("roll", |x| x.a().roll(&[1, -1], &[0, 1]).into_data()),
    ("slice", |x| x.a().slice([1..3, 0..2]).into_data()),
    ("slice_negative", |x| {
        x.a().slice(s![-2.., ..-1]).into_data()
    }),
    ("slice_step", |x| {
        x.floats([7, 5], 1).slice(s![1..;2, ..;3]).into_data()
    }),
    ("slice_reverse", |x| x.a().slice(s![.., ..;-1]).into_data()),
    ("slice_int", |x| x.i().slice([0..2, 1..4]).into_data()),
    ("slice_assign", |x| {
        let values = x.floats([2, 2], 9);
        x.a().slice_assign([1..3, 1..3], values).into_data()
    }),
    ("slice_assign_step", |x| {
        let values = x.floats([2, 4], 9);
        x.a().slice_assign(s![0..;2, ..], values).into_data()
    }),
    ("slice_fill", |x| {
        x.a().slice_fill([0..2, 2..4], 7.0).into_data()
    }),
    ("narrow", |x| x.a().narrow(1, 1, 2).into_data()),
    ("split", |x| x.a().split(3, 1).swap_remove(1).into_data()),
    ("chunk", |x| x.a().chunk(2, 0).swap_remove(0).into_data()),
    ("cat", |x| {
        Tensor::cat(vec![x.a(), x.b(), x.a()], 1).into_data()
    }),
    ("cat_int", |x| {
        Tensor::cat(vec![x.i(), x.j()], 0).into_data()
    }),
    ("stack", |x| {
        Tensor::stack::<3>(vec![x.a(), x.b()], 1).into_data()
    }),
    ("select", |x| x.a().select(0, x.indices([5], 3)).into_data()),
    ("select_int", |x| {
        x.i().select(1, x.indices([6], 4)).into_data()
    }),
    ("select_assign", |x| {
        let values = x.floats([5, 4], 9);
        x.a()
            .select_assign(0, x.indices([5], 3), values, IndexingUpdateOp::Add)
            .into_data()
    }),
    ("gather", |x| {
        x.a().gather(1, x.indices([3, 6], 4)).into_data()
    }),
    ("gather_dim_0", |x| {
        x.a().gather(0, x.indices([2, 4], 3)).into_data()
    }),
    ("gather_int", |x| {
        x.i().gather(1, x.indices([3, 2], 4)).into_data()
    }),
    ("scatter_add", |x| {
        let values = x.floats([3, 4], 9);
        x.a()
            .scatter(1, x.indices([3, 4], 4), values, IndexingUpdateOp::Add)
            .into_data()
    }),
    ("scatter_add_int", |x| {
        x.i()
            .scatter(1, x.indices([3, 4], 4), x.j(), IndexingUpdateOp::Add)
            .into_data()
    }),
    ("gather_nd", |x| {
        let indices = Tensor::<Remote, 2, Int>::from_ints([[0, 1], [2, 3], [1, 0]], &x.device);
        x.a().gather_nd::<2, 1>(indices).into_data()
    }),
    ("scatter_nd_assign", |x| {
        let indices = Tensor::<Remote, 2, Int>::from_ints([[0], [2]], &x.device);
        let values = x.floats([2, 4], 9);
        x.a()
            .scatter_nd::<2, 2>(indices, values, IndexingUpdateOp::Assign)
            .into_data()
    }),
    ("scatter_nd_add", |x| {
        let indices = Tensor::<Remote, 2, Int>::from_ints([[0], [0]], &x.device);
        let values = x.floats([2, 4], 9);
        x.a()
            .scatter_nd::<2, 2>(indices, values, IndexingUpdateOp::Add)
            .into_data()
    }),
    ("scatter_nd_max", |x| {
        let indices = Tensor::<Remote, 2, Int>::from_ints([[1], [2]], &x.device);
        let values = x.floats([2, 4], 9);
        x.a()
            .scatter_nd::<2, 2>(indices, values, IndexingUpdateOp::Max)
            .into_data()
    }),
    ("take", |x| {
        x.a().take::<2, 3>(1, x.indices([2, 2], 4)).into_data()
    }),
    ("one_hot", |x| x.indices([5], 4).one_hot::<2>(4).into_data()),
    ("triu", |x| x.floats([4, 4], 1).triu(1).into_data()),
    ("tril", |x| x.floats([4, 4], 1).tril(-1).into_data()),
    ("unfold", |x| {
        x.floats([2, 8], 1).unfold::<3, usize>(1, 4, 2).into_data()
    }),
    ("pad", |x| x.a().pad((1, 2, 0, 1), 9.0).into_data()),
    ("iter_dim", |x| {
        let rows: Vec<_> = x.a().iter_dim(0).collect();
        Tensor::cat(rows, 1).into_data()
    }),
    ("inputs_survive", |x| {
        let a = x.a();
        let used = a.clone().exp() + a.clone().transpose().reshape([3, 4]);
        (a - used).into_data()
    }),
];
