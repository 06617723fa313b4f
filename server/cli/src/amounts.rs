//! Amounts of CPU and memory as Kubernetes quantities.

use crowsnest_apimachinery::quantity::{Format, Quantity};

pub(crate) fn format_cpu(millicores: i64) -> String {
    Quantity::from_milli(millicores, Format::DecimalSI).to_string()
}

pub(crate) fn format_memory(bytes: i64) -> String {
    Quantity::new(bytes, Format::BinarySI).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(0, "0", "0")]
    #[case(250, "250m", "250")]
    #[case(2048, "2048m", "2Ki")]
    #[case(4_000_000, "4k", "4000000")]
    fn amounts_are_quantities(#[case] amount: i64, #[case] cpu: &str, #[case] memory: &str) {
        assert_eq!((format_cpu(amount).as_str(), format_memory(amount).as_str()), (cpu, memory));
    }
}
