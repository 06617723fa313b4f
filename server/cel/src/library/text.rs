//! The `string` conversion as in cel-go.

use std::sync::Arc;

use crowsnest_apimachinery::yaml::format_float;
use kube::core::cel::cel::{ExecutionError, Value as Cel};

use super::Outcome;

/// Converts a value to a string. Integers, addresses and networks are left to the `cel` crate, which formats them
/// like cel-go.
pub(super) fn to_string(value: Cel) -> Outcome {
    let text = match &value {
        Cel::Bool(value) => value.to_string(),
        Cel::Float(value) => format_double(*value),
        Cel::Bytes(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| {
            ExecutionError::function_error("string", "invalid UTF-8 in bytes, cannot convert to string")
        })?,
        Cel::Timestamp(time) => format_timestamp(&time.to_rfc3339()),
        Cel::Duration(duration) => {
            let seconds = duration.num_seconds() as f64 + f64::from(duration.subsec_nanos()) / 1e9;
            format!("{seconds}s")
        }
        _ => return Ok(value),
    };
    Ok(Cel::String(Arc::new(text)))
}

/// The shortest representation, in scientific notation below 0.0001 and from a million on.
fn format_double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    format_float(value)
}

/// RFC 3339 without trailing zeros in the fraction.
fn format_timestamp(text: &str) -> String {
    let text = text.strip_suffix("+00:00").map_or_else(|| text.to_owned(), |text| format!("{text}Z"));
    let Some((seconds, rest)) = text.split_once('.') else { return text };
    let (fraction, zone) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    match fraction.trim_end_matches('0') {
        "" => format!("{seconds}{zone}"),
        fraction => format!("{seconds}.{fraction}{zone}"),
    }
}
