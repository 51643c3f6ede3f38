//! Does training give the same losses and weights? An MLP with autodiff, cross-entropy and plain SGD.

use burn_tensor::activation::{log_softmax, relu};
use burn_tensor::{Device, Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::data::{device, number, shown, uniform, uniform_tensor};
use crate::watchdog;

const CLASSES: usize = 10;
const SAMPLES: usize = 512;

/// Two linear layers with ReLU between them.
pub struct Mlp {
    parameters: [Tensor<2>; 4],
}

impl Mlp {
    /// Upload the initial weights: numbers with salts 1 to 4 and scale 2 / √inputs (biases 0.1).
    pub fn new(inputs: usize, hidden: usize, device: &Device) -> Self {
        let device = device.clone().autodiff();
        let scale = |inputs: usize| 2.0 / (inputs as f32).sqrt();
        let parameters = [
            uniform_tensor([inputs, hidden], 1, scale(inputs), &device),
            uniform_tensor([1, hidden], 2, 0.1, &device),
            uniform_tensor([hidden, CLASSES], 3, scale(hidden), &device),
            uniform_tensor([1, CLASSES], 4, 0.1, &device),
        ];
        Self {
            parameters: parameters.map(Tensor::require_grad),
        }
    }

    /// Do one step of gradient descent and return the mean cross-entropy before it, shape [1].
    pub fn step(&mut self, batch: &Batch, rate: f64) -> Tensor<1> {
        let [weight1, bias1, weight2, bias2] = self.parameters.clone();
        let hidden = relu(batch.inputs.clone().matmul(weight1) + bias1);
        let logits = hidden.matmul(weight2) + bias2;
        let loss = log_softmax(logits, 1)
            .gather(1, batch.labels.clone())
            .mean()
            .neg();
        let mut gradients = loss.backward();
        for parameter in &mut self.parameters {
            let gradient = parameter
                .grad_remove(&mut gradients)
                .expect("every weight takes part in the loss");
            let next = parameter.clone().inner() - gradient.mul_scalar(rate);
            *parameter = Tensor::from_inner(next).require_grad();
        }
        loss
    }
}

/// Inputs of shape [batch, inputs] and labels of shape [batch, 1].
pub struct Batch {
    inputs: Tensor<2>,
    labels: Tensor<2, Int>,
}

impl Batch {
    /// Upload `count` samples from number `first` on.
    ///
    /// Sample `s` has the label `s % 10`; its values are those of the label's prototype (salt 10) plus half of its
    /// own noise (salt 11).
    pub fn new(first: usize, count: usize, inputs: usize, device: &Device) -> Self {
        let device = device.clone().autodiff();
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
            inputs: Tensor::from_data(TensorData::new(values, [count, inputs]), &device),
            labels: Tensor::from_data(TensorData::new(labels, [count, 1]), &device),
        }
    }
}

/// `train ADDRESS [--steps 20] [--batch 64] [--rate 0.5] [--read-each-step]`
pub fn run(arguments: &Arguments) -> Value {
    let device = device(arguments.word(0, "the server's address"), 0);
    let steps: usize = arguments.option("--steps", 20);
    let batch: usize = arguments.option("--batch", 64);
    let rate: f64 = arguments.option("--rate", 0.5);
    let read_each_step = arguments.switch("--read-each-step");
    let mut mlp = Mlp::new(64, 32, &device);
    let mut losses = Vec::new();
    let mut unread = Vec::new();
    for step in 0..steps {
        watchdog::step(format!("step {step}"));
        let loss = mlp.step(&Batch::new(step * batch, batch, 64, &device), rate);
        if read_each_step {
            losses.push(scalar(loss));
        } else {
            unread.push(loss);
        }
    }
    watchdog::step("reading the results");
    losses.extend(unread.into_iter().map(scalar));
    let weights: Vec<Value> = mlp
        .parameters
        .iter()
        .map(|parameter| shown(&parameter.to_data()))
        .collect();
    json!({"losses": losses, "weights": weights})
}

fn scalar(loss: Tensor<1>) -> Value {
    number(f64::from(loss.into_scalar::<f32>()))
}
