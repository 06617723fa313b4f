//! Validation of allocated IP addresses and CIDRs. They are compared as text, so only the canonical form is valid
//! (`IsValidIP` and `IsValidCIDR` of apimachinery). Has no side effects.

use std::net::IpAddr;

use crowsnest_schema::formats::strip_leading_zeros;

use super::network::{CIDR_ERROR, IP_ERROR, is_cidr};
use super::{Errors, Value, at, items, json, text, validate_dns1123_subdomain, validate_path_segment};

const IMMUTABLE: &str = "field is immutable";

/// The error of an address that is invalid or not in canonical form.
pub(super) fn address_error(text: &str) -> Option<String> {
    legacy_address_error(text).or_else(|| {
        let canonical = text.parse::<IpAddr>().ok()?.to_string();
        (canonical != text).then(|| format!("must be in canonical form ({canonical:?})"))
    })
}

/// The error of an address in a legacy field, which accepts several forms (`IsValidIPForLegacyField`).
pub(super) fn legacy_address_error(text: &str) -> Option<String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address".to_owned())
        }
        Ok(_) => None,
        Err(_) if strip_leading_zeros(text).parse::<IpAddr>().is_ok() => Some("must not have leading 0s".to_owned()),
        Err(_) => Some(IP_ERROR.to_owned()),
    }
}

/// Validates an address in a legacy field; returns true if it is valid.
pub(super) fn validate_legacy_address(e: &mut Errors, field: &str, address: &Value) -> bool {
    let address = address.as_str().unwrap_or_default();
    let error = legacy_address_error(address);
    let is_valid = error.is_none();
    if let Some(reason) = error {
        e.invalid(field, &json!(address), reason);
    }
    is_valid
}

/// The error of a CIDR that is invalid or not in canonical form.
fn cidr_error(range: &str) -> Option<String> {
    legacy_cidr_error(range).or_else(|| {
        let (address, length) = range.split_once('/')?;
        let canonical = format!("{}/{}", address.parse::<IpAddr>().ok()?, length.parse::<u32>().ok()?);
        (canonical != range).then(|| format!("must be in canonical form ({canonical:?})"))
    })
}

/// The error of a CIDR in a legacy field (`IsValidCIDRForLegacyField`).
pub(super) fn legacy_cidr_error(range: &str) -> Option<String> {
    let (address, length) = range.split_once('/').unwrap_or((range, ""));
    let without_leading_zeros = || {
        let length = length.trim_start_matches('0');
        format!("{}/{}", strip_leading_zeros(address), if length.is_empty() { "0" } else { length })
    };
    if !is_cidr(range) || (length.starts_with('0') && length != "0") {
        let has_leading_zeros = !length.is_empty() && is_cidr(&without_leading_zeros());
        return Some(
            if has_leading_zeros { "must not have leading 0s in IP or prefix length" } else { CIDR_ERROR }.to_owned(),
        );
    }
    let (Ok(address), Ok(length)) = (address.parse::<IpAddr>(), length.parse::<u32>()) else {
        return Some(CIDR_ERROR.to_owned());
    };
    let (number, width) = match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            return Some("must not have an IPv4-mapped IPv6 address".to_owned());
        }
        IpAddr::V6(v6) => (u128::from(v6), 128_u32),
    };
    let host_mask = u128::MAX.checked_shl(width - length).map_or(u128::MAX, |mask| !mask);
    (number & host_mask != 0).then(|| "must not have bits set beyond the prefix length".to_owned())
}

/// `ValidateIPAddress`: checks the parent reference.
pub(super) fn validate_ip_address(e: &mut Errors, object: &Value) {
    let (parent, path) = (at(object, "spec.parentRef"), "spec.parentRef");
    if parent.is_null() {
        return e.required(path, "");
    }
    let group = text(parent, "group");
    if !group.is_empty() {
        e.push_name_errors(&format!("{path}.group"), group, validate_dns1123_subdomain(group));
    }
    for field in ["resource", "name", "namespace"] {
        let (value, field_path) = (text(parent, field), format!("{path}.{field}"));
        if !value.is_empty() {
            e.push_name_errors(&field_path, value, validate_path_segment(value, false));
        } else if field != "namespace" {
            e.required(field_path, "");
        }
    }
}

/// `ValidateServiceCIDR`.
pub(super) fn validate_service_cidr(e: &mut Errors, object: &Value) {
    let (field, ranges) = ("spec.cidrs", items(object, "spec.cidrs"));
    if ranges.is_empty() {
        return e.required(field, "at least one CIDR required");
    }
    if ranges.len() > 2 {
        let value = json!({"CIDRs": ranges});
        return e.invalid(field, &value, "may only hold up to 2 values");
    }
    for (index, range) in ranges.iter().enumerate() {
        if let Some(reason) = cidr_error(range.as_str().unwrap_or_default()) {
            e.invalid(format!("{field}[{index}]"), range, reason);
        }
    }
    let family = |range: &Value| range.as_str().filter(|range| is_cidr(range)).map(|range| range.contains(':'));
    if let [first, second] = ranges
        && family(first).is_some()
        && family(first) == family(second)
    {
        let reason = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        e.invalid(field, &json!(ranges), reason);
    }
}

/// `ValidateServiceCIDRUpdate`: a second range can be added, everything else is immutable.
pub(super) fn validate_service_cidr_update(e: &mut Errors, old: &Value, new: &Value) {
    let (field, before, after) = ("spec.cidrs", items(old, "spec.cidrs"), items(new, "spec.cidrs"));
    let grows = before.len() == 1 && after.len() == 2;
    if before.len() != after.len() && !grows {
        return e.invalid(field, &json!(after), IMMUTABLE);
    }
    for (index, (_, range)) in before.iter().zip(after).enumerate().filter(|(_, (old, new))| old != new) {
        e.invalid(format!("{field}[{index}]"), range, IMMUTABLE);
    }
    if grows {
        validate_service_cidr(e, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_must_be_canonical() {
        let addresses = [
            ("10.0.0.1", None),
            ("2001:db8::1", None),
            ("010.0.0.1", Some("must not have leading 0s")),
            ("::ffff:10.0.0.1", Some("must not be an IPv4-mapped IPv6 address")),
            ("2001:DB8::1", Some("must be in canonical form (\"2001:db8::1\")")),
            ("x", Some(IP_ERROR)),
        ];
        for (text, expected_error) in addresses {
            assert_eq!(address_error(text).as_deref(), expected_error, "{text}");
        }
        let ranges = [
            ("10.0.0.0/8", None),
            ("::/0", None),
            ("10.0.0.0/08", Some("must not have leading 0s in IP or prefix length")),
            ("10.00.0.0/8", Some("must not have leading 0s in IP or prefix length")),
            ("10.0.0.1/8", Some("must not have bits set beyond the prefix length")),
            ("2001:DB8::/32", Some("must be in canonical form (\"2001:db8::/32\")")),
            ("::ffff:10.0.0.0/104", Some("must not have an IPv4-mapped IPv6 address")),
            ("10.0.0.0", Some(CIDR_ERROR)),
            ("10.0.0.0/33", Some(CIDR_ERROR)),
        ];
        for (text, expected_error) in ranges {
            assert_eq!(cidr_error(text).as_deref(), expected_error, "{text}");
        }
    }
}
