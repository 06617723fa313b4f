//! YAML as Kubernetes and Karmada read and write it: YAML 1.1 of Go's yaml.v2, converted from and to JSON.
//!
//! [`read`] parses, [`write`] prints; both use [`scalar`] to resolve plain scalars: `0644` is an octal integer, `yes` is a
//! boolean. Because of the conversion to JSON, `1.0` becomes `1` and a date stays a string.

mod read;
mod scalar;
mod write;

pub use read::{Document, ReadError, parse, parse_document};
pub use scalar::{convert_integral_floats, format_float};
pub use write::to_yaml;
