//! IP addresses and networks as Go's `net/netip` parses them, with its error messages.

use std::net::IpAddr;

/// Parse error: a message, and the text from the failing position on.
struct ParseError<'t> {
    message: &'static str,
    rest: Option<&'t str>,
}

impl<'t> ParseError<'t> {
    fn new(message: &'static str) -> Self {
        Self { message, rest: None }
    }

    fn at(message: &'static str, rest: &'t str) -> Self {
        Self { message, rest: Some(rest) }
    }
}

/// Parses the argument of `ip`, which must have no zone and not be IPv4-mapped.
pub(super) fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let address = parse(text)
        .map_err(|message| format!("IP Address {text:?} parse error during conversion from string: {message}"))?;
    if text.contains('%') {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    reject_mapped(address, text)
}

/// Parses the argument of `cidr`. The duplicate prefix in errors is that of kube-apiserver.
pub(super) fn parse_cidr(text: &str) -> Result<(), String> {
    let prefix = "network address parse error during conversion from string";
    let address =
        parse_network(text).map_err(|message| format!("{prefix}: {prefix}: netip.ParsePrefix({text:?}): {message}"))?;
    reject_mapped(address, text).map(drop).map_err(|message| format!("{prefix}: {message}"))
}

fn reject_mapped(address: IpAddr, text: &str) -> Result<IpAddr, String> {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        address => Ok(address),
    }
}

/// Parses a network; returns its address, in which bits beyond the prefix may be set.
fn parse_network(text: &str) -> Result<IpAddr, String> {
    let (address, bits) = text.rsplit_once('/').ok_or("no '/'")?;
    let has_zone = address.contains('%');
    let address = parse(address)?;
    if has_zone {
        return Err("IPv6 zones cannot be present in a prefix".into());
    }
    let bits_error = || format!("bad bits after slash: {bits:?}");
    let is_canonical = bits.len() == 1 || !bits.starts_with(['0', '+', '-']);
    let length: i64 = bits.parse().ok().filter(|_| is_canonical).ok_or_else(bits_error)?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    if (0..=max).contains(&length) { Ok(address) } else { Err("prefix length out of range".into()) }
}

/// Parses an address; a zone is dropped.
pub(super) fn parse(text: &str) -> Result<IpAddr, String> {
    let parsed = match text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]) {
        Some(b'.') => parse_ipv4(text, 0).map(IpAddr::from),
        Some(b':') => parse_ipv6(text).map(IpAddr::from),
        Some(_) => Err(ParseError::new("missing IPv6 address")),
        None => Err(ParseError::new("unable to parse IP")),
    };
    parsed.map_err(|ParseError { message, rest }| {
        let at = rest.map(|rest| format!(" (at {rest:?})")).unwrap_or_default();
        format!("ParseAddr({text:?}): {message}{at}")
    })
}

/// Parses the four octets of an IPv4 address at an offset.
fn parse_ipv4(text: &str, from: usize) -> Result<[u8; 4], ParseError<'_>> {
    let text = &text[from..];
    let (mut fields, mut index, mut value, mut digits) = ([0; 4], 0, 0_u32, 0);
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err(ParseError::new("IPv4 field has octet with leading zero"));
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err(ParseError::new("IPv4 field has value >255"));
                }
            }
            b'.' => {
                if at == 0 || at == bytes.len() - 1 || bytes[at - 1] == b'.' {
                    return Err(ParseError::at("IPv4 field must have at least one digit", &text[at..]));
                }
                if index == 3 {
                    return Err(ParseError::new("IPv4 address too long"));
                }
                fields[index] = value as u8;
                (index, value, digits) = (index + 1, 0, 0);
            }
            _ => return Err(ParseError::at("unexpected character", text.get(at..).unwrap_or_default())),
        }
    }
    if index < 3 {
        return Err(ParseError::new("IPv4 address too short"));
    }
    fields[3] = value as u8;
    Ok(fields)
}

/// Parses the sixteen bytes of an IPv6 address, which may have a zone.
fn parse_ipv6(text: &str) -> Result<[u8; 16], ParseError<'_>> {
    let mut rest = match text.split_once('%') {
        Some((_, "")) => return Err(ParseError::new("zone must be a non-empty string")),
        Some((address, _)) => address,
        None => text,
    };
    let end = rest.len();
    let (mut bytes, mut filled, mut ellipsis) = ([0; 16], 0, None);
    if let Some(after) = rest.strip_prefix("::") {
        (ellipsis, rest) = (Some(0), after);
        if rest.is_empty() {
            return Ok(bytes);
        }
    }
    while filled < 16 {
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        if digits > 4 {
            return Err(ParseError::at("each group must have 4 or less digits", rest));
        }
        if digits == 0 {
            return Err(ParseError::at("each colon-separated field must have at least one digit", rest));
        }
        if rest[digits..].starts_with('.') {
            if ellipsis.is_none() && filled != 12 {
                let message = "embedded IPv4 address must replace the final 2 fields of the address";
                return Err(ParseError::at(message, rest));
            }
            if filled + 4 > 16 {
                let message = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Err(ParseError::at(message, rest));
            }
            bytes[filled..filled + 4].copy_from_slice(&parse_ipv4(&text[..end], end - rest.len())?);
            (filled, rest) = (filled + 4, "");
            break;
        }
        let group = u16::from_str_radix(&rest[..digits], 16).unwrap_or_default();
        bytes[filled..filled + 2].copy_from_slice(&group.to_be_bytes());
        (filled, rest) = (filled + 2, &rest[digits..]);
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else {
            return Err(ParseError::at("unexpected character, want colon", rest));
        };
        if after.is_empty() {
            return Err(ParseError::at("colon must be followed by more characters", rest));
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if ellipsis.is_some() {
                return Err(ParseError::at("multiple :: in address", rest));
            }
            (ellipsis, rest) = (Some(filled), after);
            if rest.is_empty() {
                break;
            }
        }
    }
    if !rest.is_empty() {
        return Err(ParseError::at("trailing garbage after address", rest));
    }
    match ellipsis {
        None if filled < 16 => Err(ParseError::new("address string too short")),
        Some(_) if filled == 16 => Err(ParseError::new("the :: must expand to at least one field of zeros")),
        Some(at) => {
            bytes.copy_within(at..filled, 16 - (filled - at));
            bytes[at..16 - (filled - at)].fill(0);
            Ok(bytes)
        }
        None => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("192.168.0.1.0", "IPv4 address too long")]
    #[case("1.2.3", "IPv4 address too short")]
    #[case("1.2.3.04", "IPv4 field has octet with leading zero")]
    #[case("127.0.0.256", "IPv4 field has value >255")]
    #[case("1..2.3", "IPv4 field must have at least one digit (at \".2.3\")")]
    #[case("1.2.x.3", "unexpected character (at \"x.3\")")]
    #[case("hello", "unable to parse IP")]
    #[case("", "unable to parse IP")]
    #[case("%eth0", "missing IPv6 address")]
    #[case("fe80::1%", "zone must be a non-empty string")]
    #[case(":::1", "each colon-separated field must have at least one digit (at \":1\")")]
    #[case("2001:db8::g", "each colon-separated field must have at least one digit (at \"g\")")]
    #[case("1::2::3", "multiple :: in address (at \":3\")")]
    #[case("1:2:3:4:5:6:7", "address string too short")]
    #[case("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")")]
    #[case("12345::", "each group must have 4 or less digits (at \"12345::\")")]
    #[case("1:2:3:4:5:6:7::8", "the :: must expand to at least one field of zeros")]
    #[case("1:2:", "colon must be followed by more characters (at \":\")")]
    #[case("1:2x", "unexpected character, want colon (at \"x\")")]
    #[case("1:1.2.3.4", "embedded IPv4 address must replace the final 2 fields of the address (at \"1.2.3.4\")")]
    fn invalid_addresses_are_rejected(#[case] text: &str, #[case] message: &str) {
        assert_eq!(parse(text), Err(format!("ParseAddr({text:?}): {message}")));
    }

    #[rstest]
    #[case("10.0.0.0", "no '/'")]
    #[case("10.0.0.0/33", "prefix length out of range")]
    #[case("10.0.0.0/08", "bad bits after slash: \"08\"")]
    #[case("10.0.0.0/-1", "bad bits after slash: \"-1\"")]
    #[case("10.0.0.0/", "bad bits after slash: \"\"")]
    #[case("10.0.0/8", "ParseAddr(\"10.0.0\"): IPv4 address too short")]
    #[case("fe80::1%a/8", "IPv6 zones cannot be present in a prefix")]
    fn invalid_networks_are_rejected(#[case] text: &str, #[case] message: &str) {
        assert_eq!(parse_network(text), Err(message.to_owned()));
    }

    proptest! {
        #[test]
        fn valid_addresses_are_parsed_as_by_std(address in any::<IpAddr>()) {
            prop_assert_eq!(parse(&address.to_string()), Ok(address));
        }

        #[test]
        fn any_text_is_parsed_as_by_std(text in "[0-9a-f:.]{0,24}") {
            let parsed_by_std: Option<IpAddr> = text.parse().ok();
            prop_assert_eq!(parse(&text).ok(), parsed_by_std);
        }
    }
}
