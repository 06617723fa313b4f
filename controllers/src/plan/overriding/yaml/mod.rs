//! YAML text as Karmada reads and writes it: YAML 1.1 as Go's yaml.v2 has it, by way of JSON.

pub mod scalar;
pub mod write;

pub use write::document as written;
