//! Untyped Kubernetes objects. Templates, manifests and member objects may be of any kind, so the planner handles them as JSON.

pub use crowsnest_apimachinery::unstructured::*;
