//! Network addresses that belong to the host itself or to its own network link. No API server of a member cluster has
//! such an address. Dialing one on behalf of the author of a Cluster would reach services that trust the host they run
//! on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Prefix of IPv4 addresses behind a NAT64 gateway (RFC 6052).
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Kind of a local address ("loopback", "link-local", …); `None` for addresses that a remote host may have.
pub fn local_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => local_kind_v4(address),
        IpAddr::V6(address) => local_kind_v6(address),
    }
}

fn local_kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address.octets() {
        // RFC 1122: "this host on this network"; Linux connects to the local host.
        [0, ..] => Some("unspecified"),
        [127, ..] => Some("loopback"),
        [169, 254, ..] => Some("link-local"),
        [224..=239, ..] => Some("multicast"),
        [255, 255, 255, 255] => Some("broadcast"),
        _ => None,
    }
}

fn local_kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(embedded) = embedded_v4(address) {
        return local_kind_v4(embedded);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        _ => None,
    }
}

/// The IPv4 address embedded in an IPv6 address: mapped, compatible, or behind the well-known NAT64 prefix.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let (prefix, [high, low]) = (&segments[..6], [segments[6], segments[7]]);
    let is_mapped = prefix == [0, 0, 0, 0, 0, 0xffff];
    // `::` and `::1` embed no IPv4 address.
    let is_compatible = prefix == [0; 6] && (high, low) != (0, 0) && (high, low) != (0, 1);
    if !is_mapped && !is_compatible && prefix != NAT64 {
        return None;
    }
    let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
    Some(Ipv4Addr::new(a, b, c, d))
}

/// Kind of a local host in the notation of URLs. Names other than `localhost` have no kind until they are resolved.
pub fn local_kind_of_host(host: &str) -> Option<&'static str> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // Removes the zone of a link-local address.
    let host = host.split('%').next().unwrap_or_default();
    if let Ok(address) = host.parse::<IpAddr>() {
        return local_kind(address);
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    (name == "localhost" || name.ends_with(".localhost")).then_some("loopback")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("127.0.0.1", Some("loopback"))]
    #[case("127.255.0.9", Some("loopback"))]
    #[case("0.0.0.0", Some("unspecified"))]
    #[case("0.1.2.3", Some("unspecified"))]
    #[case("169.254.169.254", Some("link-local"))]
    #[case("239.1.1.1", Some("multicast"))]
    #[case("255.255.255.255", Some("broadcast"))]
    #[case("::1", Some("loopback"))]
    #[case("::", Some("unspecified"))]
    #[case("fe80::1", Some("link-local"))]
    #[case("febf::1", Some("link-local"))]
    #[case("ff02::1", Some("multicast"))]
    #[case::mapped("::ffff:127.0.0.1", Some("loopback"))]
    #[case::mapped_metadata("::ffff:a9fe:a9fe", Some("link-local"))]
    #[case::compatible("::7f00:1", Some("loopback"))]
    #[case::nat64("64:ff9b::169.254.169.254", Some("link-local"))]
    #[case("10.0.0.1", None)]
    #[case("192.168.1.1", None)]
    #[case("168.254.0.1", None)]
    #[case("2001:db8::1", None)]
    #[case("fd00::1", None)]
    #[case("fec0::1", None)]
    #[case("64:ff9b::10.0.0.1", None)]
    fn local_addresses_are_recognized(#[case] address: &str, #[case] expected: Option<&str>) {
        assert_eq!(local_kind(address.parse().unwrap()), expected);
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        assert_eq!(local_kind_of_host(&host), expected);
    }

    #[rstest]
    #[case("localhost", Some("loopback"))]
    #[case("LocalHost.", Some("loopback"))]
    #[case("metadata.localhost", Some("loopback"))]
    #[case("[fe80::1%25eth0]", Some("link-local"))]
    #[case("notlocalhost", None)]
    #[case("localhost.example.com", None)]
    #[case("", None)]
    fn names_of_the_local_host_are_recognized(#[case] host: &str, #[case] expected: Option<&str>) {
        assert_eq!(local_kind_of_host(host), expected);
    }
}
