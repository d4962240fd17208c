use std::any::Any;
use std::sync::Arc;

/// Keeps memory alive, and takes it back when dropped.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;
