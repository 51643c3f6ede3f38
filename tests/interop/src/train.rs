//! Does training give the same losses and weights? An MLP with autodiff, cross-entropy and plain SGD.

use burn_tensor::activation::{log_softmax, relu};
use burn_tensor::backend::{AutodiffBackend, Backend};
use burn_tensor::{Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::arguments::{Arguments, refuse};
use crate::data::{uniform, uniform_tensor};
use crate::device::{RemoteAutodiff, RemoteDevice};
use crate::{output, watchdog};

/// How many classes the samples fall into.
const CLASSES: usize = 10;

/// How many samples exist; step `n` takes the next `batch` of them, and starts again at the end.
const SAMPLES: usize = 512;

/// The sizes of the layers: inputs, hidden, classes.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub inputs: usize,
    pub hidden: usize,
}

impl Sizes {
    /// As for 28 × 28 images.
    pub const MLP: Self = Self {
        inputs: 784,
        hidden: 128,
    };
    /// As for the 8 × 8 digits.
    pub const DIGITS: Self = Self {
        inputs: 64,
        hidden: 32,
    };
}

/// Two linear layers with ReLU between them.
pub struct Mlp<B: Backend> {
    weight1: Tensor<B, 2>,
    bias1: Tensor<B, 1>,
    weight2: Tensor<B, 2>,
    bias2: Tensor<B, 1>,
}

impl<B: AutodiffBackend> Mlp<B> {
    /// Upload the initial weights: [`uniform_tensor`] with salts 1 to 4 and scale 2 / √inputs (biases 0.1).
    pub fn new(sizes: Sizes, device: &B::Device) -> Self {
        let scale = |inputs: usize| 2.0 / (inputs as f32).sqrt();
        let Sizes { inputs, hidden } = sizes;
        Self {
            weight1: uniform_tensor([inputs, hidden], 1, scale(inputs), device).require_grad(),
            bias1: uniform_tensor([hidden], 2, 0.1, device).require_grad(),
            weight2: uniform_tensor([hidden, CLASSES], 3, scale(hidden), device).require_grad(),
            bias2: uniform_tensor([CLASSES], 4, 0.1, device).require_grad(),
        }
    }

    /// The mean cross-entropy of the batch, shape [1].
    pub fn loss(&self, batch: &Batch<B>) -> Tensor<B, 1> {
        let hidden =
            batch.inputs.clone().matmul(self.weight1.clone()) + self.bias1.clone().unsqueeze::<2>();
        let logits =
            relu(hidden).matmul(self.weight2.clone()) + self.bias2.clone().unsqueeze::<2>();
        log_softmax(logits, 1)
            .gather(1, batch.labels.clone())
            .mean()
            .neg()
    }

    /// Do one step of gradient descent and return the loss before it.
    pub fn step(&mut self, batch: &Batch<B>, rate: f64) -> Tensor<B, 1> {
        let loss = self.loss(batch);
        let mut gradients = loss.backward();
        descend(&mut self.weight1, &mut gradients, rate);
        descend(&mut self.bias1, &mut gradients, rate);
        descend(&mut self.weight2, &mut gradients, rate);
        descend(&mut self.bias2, &mut gradients, rate);
        loss
    }

    /// Read all weights, by name.
    pub fn read(&self) -> [(&'static str, TensorData); 4] {
        [
            ("weight1", self.weight1.to_data()),
            ("bias1", self.bias1.to_data()),
            ("weight2", self.weight2.to_data()),
            ("bias2", self.bias2.to_data()),
        ]
    }
}

fn descend<B: AutodiffBackend, const D: usize>(
    weight: &mut Tensor<B, D>,
    gradients: &mut B::Gradients,
    rate: f64,
) {
    let gradient = weight
        .grad_remove(gradients)
        .expect("every weight takes part in the loss");
    let next = weight.clone().inner() - gradient.mul_scalar(rate);
    *weight = Tensor::from_inner(next).require_grad();
}

/// Inputs of shape [batch, inputs] and labels of shape [batch, 1].
pub struct Batch<B: Backend> {
    inputs: Tensor<B, 2>,
    labels: Tensor<B, 2, Int>,
}

impl<B: Backend> Batch<B> {
    /// Upload `count` samples from number `first` on.
    ///
    /// Sample `s` has the label `s % 10`; its values are those of the label's prototype (salt 10) plus half of its
    /// own noise (salt 11).
    pub fn new(first: usize, count: usize, inputs: usize, device: &B::Device) -> Self {
        let samples = (first..first + count).map(|sample| sample % SAMPLES);
        let labels: Vec<i32> = samples.clone().map(|s| (s % CLASSES) as i32).collect();
        let values: Vec<f32> = samples
            .flat_map(|sample| {
                (0..inputs).map(move |column| {
                    let prototype = uniform((sample % CLASSES * inputs + column) as u32, 10);
                    prototype + 0.5 * uniform((sample * inputs + column) as u32, 11)
                })
            })
            .collect();
        Self {
            inputs: Tensor::from_data(TensorData::new(values, [count, inputs]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count, 1]), device),
        }
    }
}

/// `train ADDRESS [--model mlp|digits] [--steps 20] [--batch 64] [--rate 0.5] [--read-each-step] [--full]`
pub fn run(arguments: &Arguments) -> Value {
    let device = RemoteDevice::new(arguments.word(0, "the server's address"));
    let model: String = arguments.option("--model", "mlp".to_string());
    let sizes = match model.as_str() {
        "mlp" => Sizes::MLP,
        "digits" => Sizes::DIGITS,
        _ => refuse("--model is mlp or digits"),
    };
    let steps: usize = arguments.option("--steps", 20);
    let batch: usize = arguments.option("--batch", 64);
    let rate: f64 = arguments.option("--rate", 0.5);
    let read_each_step = arguments.switch("--read-each-step");

    watchdog::step("uploading the weights");
    let mut mlp = Mlp::<RemoteAutodiff>::new(sizes, &device);
    let mut losses = Vec::new();
    let mut unread = Vec::new();
    for step in 0..steps {
        watchdog::step(format!("step {step}"));
        let batch = Batch::new(step * batch, batch, sizes.inputs, &device);
        let loss = mlp.step(&batch, rate);
        if read_each_step {
            losses.push(scalar(loss));
        } else {
            unread.push(loss);
        }
    }
    watchdog::step("reading the results");
    losses.extend(unread.into_iter().map(scalar));
    let weights: serde_json::Map<String, Value> = mlp
        .read()
        .into_iter()
        .map(|(name, data)| {
            let shown = if arguments.switch("--full") {
                output::tensor(&data)
            } else {
                output::summary(&data)
            };
            (name.to_string(), shown)
        })
        .collect();
    json!({"model": model, "steps": steps, "batch": batch, "rate": rate, "losses": losses, "weights": weights})
}

fn scalar(loss: Tensor<RemoteAutodiff, 1>) -> Value {
    output::number(f64::from(loss.into_scalar()))
}
