//! Which backends do the programs run on, and how do they wait for a device?

use burn_tensor::backend::{Backend, ExecutionError};

pub use burn_remote::RemoteDevice;

/// The remote backend over WebSocket: each operation is sent to the device's server.
pub type Remote = burn_remote::RemoteBackend;

/// The same with gradients, recorded in this process.
pub type RemoteAutodiff = burn_autodiff::Autodiff<Remote>;

/// Wait until the server has executed everything that this thread has sent.
pub fn sync(device: &RemoteDevice) -> Result<(), ExecutionError> {
    Remote::sync(device)
}
