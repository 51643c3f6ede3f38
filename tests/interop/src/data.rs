//! Which numbers go in? The same in every language: a 32-bit mixing function of position and salt.

use burn_tensor::{Int, Tensor};
use burn_tensor::{TensorData, backend::Backend};

/// Spread `index` and `salt` over 32 bits (the finalizer of MurmurHash3 over their combination).
pub fn mix(index: u32, salt: u32) -> u32 {
    let mut bits = index ^ salt.wrapping_mul(0x9E37_79B9);
    bits ^= bits >> 16;
    bits = bits.wrapping_mul(0x85EB_CA6B);
    bits ^= bits >> 13;
    bits = bits.wrapping_mul(0xC2B2_AE35);
    bits ^ (bits >> 16)
}

/// A number in [-0.5, 0.5) with 24 significant bits, so that it is exact in f32.
pub fn uniform(index: u32, salt: u32) -> f32 {
    (mix(index, salt) >> 8) as f32 / (1 << 24) as f32 - 0.5
}

/// `count` numbers of [`uniform`], each multiplied by `scale`.
pub fn uniform_values(count: usize, salt: u32, scale: f32) -> Vec<f32> {
    (0..count as u32)
        .map(|index| uniform(index, salt) * scale)
        .collect()
}

/// A float tensor of [`uniform_values`].
pub fn uniform_tensor<B: Backend, const D: usize>(
    shape: [usize; D],
    salt: u32,
    scale: f32,
    device: &B::Device,
) -> Tensor<B, D> {
    let values = uniform_values(shape.iter().product(), salt, scale);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// An i32 tensor with values in `0..below`.
pub fn index_tensor<B: Backend, const D: usize>(
    shape: [usize; D],
    salt: u32,
    below: u32,
    device: &B::Device,
) -> Tensor<B, D, Int> {
    let values: Vec<i32> = (0..shape.iter().product::<usize>() as u32)
        .map(|index| (mix(index, salt) % below) as i32)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_the_numbers_that_the_readme_promises() {
        assert_eq!(mix(1, 2), 314_344_336);
        assert_eq!(uniform(1, 2), -0.426_811_04);
    }
}
