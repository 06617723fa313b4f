//! Name resolution for engines whose addresses a user chose: names that resolve to local addresses are refused.

use crowsnest_apimachinery::addresses::local_kind;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::SocketAddr;

/// Resolves names with the system resolver and refuses those with a loopback, link-local, unspecified or multicast address.
/// A name is checked for each connection, because it may resolve to different addresses over time.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteOnlyResolver;

impl Resolve for RemoteOnlyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            match find_refusal(name.as_str(), &found) {
                Some(reason) => Err(reason.into()),
                None => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

/// Reason to refuse the addresses of a name; None if none of them is local.
fn find_refusal(name: &str, found: &[SocketAddr]) -> Option<String> {
    let (address, kind) = found.iter().find_map(|address| Some((address.ip(), local_kind(address.ip())?)))?;
    Some(format!("{name} resolves to {address}, a {kind} address; set --allow-local-endpoints to allow it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&["10.0.0.1:0"], None)]
    #[case(&["10.0.0.1:0", "127.0.0.1:0"], Some("127.0.0.1, a loopback address"))]
    #[case(&["169.254.169.254:0"], Some("link-local"))]
    #[case(&["[::1]:0"], Some("loopback"))]
    #[case(&[], None)]
    fn names_with_local_addresses_are_refused(#[case] found: &[&str], #[case] expected: Option<&str>) {
        let found: Vec<SocketAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
        let refused = find_refusal("search", &found);
        assert_eq!(refused.is_some(), expected.is_some());
        assert!(refused.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
