//! Warnings for addresses and networks that are valid but not in canonical form (KEP-4858).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Warning for an address; invalid ones are handled by validation.
pub(super) fn address_warning(field: &str, text: &str) -> Option<String> {
    let Ok(IpAddr::V6(address)) = text.parse::<IpAddr>() else { return None };
    if let Some(mapped) = address.to_ipv4_mapped() {
        return Some(format!("{field}: non-standard IP address \"{text}\" is invalid: use \"{mapped}\""));
    }
    let canonical = address.to_string();
    (canonical != text)
        .then(|| format!("{field}: IPv6 address \"{text}\" should be in RFC 5952 canonical format (\"{canonical}\")"))
}

/// Warnings for a network: bits beyond the prefix, and non-canonical notation.
pub(super) fn network_warnings(field: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let Some((given, length)) = text.split_once('/') else { return out };
    let (Ok(given), Ok(length)) = (given.parse::<IpAddr>(), length.parse::<u32>()) else { return out };
    let (address, network_address, bits) = match given {
        IpAddr::V4(address) => (given, network_address_v4(address, length), 32),
        IpAddr::V6(address) => match address.to_ipv4_mapped().zip(length.checked_sub(96)) {
            Some((mapped, length)) => (IpAddr::V4(mapped), network_address_v4(mapped, length), 32),
            None => (given, network_address_v6(address, length), 128),
        },
    };
    let length = if given.is_ipv6() && bits == 32 { length.saturating_sub(96) } else { length };
    if address != network_address {
        out.push(format!(
            "{field}: CIDR value \"{text}\" is ambiguous in this context (should be \"{network_address}/{length}\" or \"{address}/{bits}\"?)"
        ));
    }
    if given.is_ipv6() && bits == 32 {
        out.push(format!("{field}: non-standard CIDR value \"{text}\" is invalid: use \"{network_address}/{length}\""));
    }
    let canonical = format!("{given}/{length}");
    if out.is_empty() && given.is_ipv6() && canonical != text {
        out.push(format!(
            "{field}: IPv6 CIDR value \"{text}\" should be in RFC 5952 canonical format (\"{canonical}\")"
        ));
    }
    out
}

fn network_address_v4(address: Ipv4Addr, length: u32) -> IpAddr {
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
    IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
}

fn network_address_v6(address: Ipv6Addr, length: u32) -> IpAddr {
    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
    IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
}
