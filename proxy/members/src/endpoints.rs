//! Rules for endpoints that receive members' tokens: only HTTPS, and no addresses of this host unless allowed.
//!
//! The author of a Cluster chooses the endpoint that this process connects to. Host names are resolved and checked for
//! each connection, because they may resolve to different addresses over time.

use crowsnest_apimachinery::addresses::{local_kind, local_kind_of_host};
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use tower::Service;

/// Rules for `spec.apiEndpoint` and `spec.proxyURL` of Clusters. The default is the most restrictive one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointRules {
    /// Allows loopback, link-local, unspecified and multicast addresses.
    pub allow_local: bool,
    /// Allows tokens over plain HTTP. No flag sets this: only tests and benchmarks with members in their own process
    /// do.
    pub allow_plain_http: bool,
}

impl EndpointRules {
    /// Rules for a value of the flag `--allow-local-endpoints`.
    pub fn new(allow_local: bool) -> Self {
        Self { allow_local, allow_plain_http: false }
    }

    /// Returns the reason if tokens must not be sent to `endpoint`.
    pub(crate) fn check_scheme(self, endpoint: &Uri) -> Result<(), String> {
        match endpoint.scheme_str() {
            Some("http") if !self.allow_plain_http => {
                Err("tokens are sent over https only, never over plain http".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Returns the reason if the host of `uri` must not be dialed. Covers hosts that need no name resolution.
    pub(crate) fn check_host(self, uri: &Uri) -> Result<(), String> {
        let host = uri.host().unwrap_or_default();
        match local_kind_of_host(host).filter(|_| !self.allow_local) {
            Some(kind) => Err(refusal(host, kind)),
            None => Ok(()),
        }
    }
}

fn refusal(address: impl std::fmt::Display, kind: &str) -> String {
    format!("{address} is a {kind} address, which is not allowed for members; set --allow-local-endpoints to allow it")
}

/// Resolves names with the system resolver and refuses names that resolve to this host.
#[derive(Debug, Clone)]
pub(crate) struct Resolver {
    system: GaiResolver,
    rules: EndpointRules,
}

impl Resolver {
    pub(crate) fn new(rules: EndpointRules) -> Self {
        Self { system: GaiResolver::new(), rules }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.system.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.system.call(name.clone());
        let rules = self.rules;
        Box::pin(async move { check_addresses(rules, name.as_str(), resolving.await?.collect()).map(Vec::into_iter) })
    }
}

/// Returns the addresses of a name, or an error if one of them is not allowed. Has no side effects.
fn check_addresses(rules: EndpointRules, name: &str, addresses: Vec<SocketAddr>) -> std::io::Result<Vec<SocketAddr>> {
    let local = addresses.iter().find_map(|address| Some((address.ip(), local_kind(address.ip())?)));
    match local.filter(|_| !rules.allow_local) {
        Some((address, kind)) => Err(std::io::Error::other(format!("{name} resolves to {}", refusal(address, kind)))),
        None => Ok(addresses),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://m1", None)]
    #[case("http://m1", Some("never over plain http"))]
    #[case("HTTP://m1", Some("never over plain http"))]
    fn tokens_are_sent_over_https(#[case] endpoint: &str, #[case] expected: Option<&str>) {
        let endpoint: Uri = endpoint.parse().unwrap();
        let found = EndpointRules::new(true).check_scheme(&endpoint).err();
        assert_eq!(found.as_deref().map(|reason| reason.contains(expected.unwrap_or("?"))), expected.map(|_| true));
        assert_eq!(EndpointRules { allow_plain_http: true, allow_local: false }.check_scheme(&endpoint), Ok(()));
    }

    #[rstest]
    #[case("https://10.0.0.1", true)]
    #[case("https://m1.example.com", true)]
    #[case("https://127.0.0.1:6443", false)]
    #[case("https://[::ffff:127.0.0.1]:6443", false)]
    #[case("https://169.254.169.254", false)]
    #[case("socks5://me:secret@localhost:1080", false)]
    fn local_hosts_are_refused_unless_allowed(#[case] uri: &str, #[case] expected: bool) {
        let uri: Uri = uri.parse().unwrap();
        assert_eq!(EndpointRules::default().check_host(&uri).is_ok(), expected);
        assert_eq!(EndpointRules::new(true).check_host(&uri), Ok(()));
    }

    /// A name that resolves to a public address first and to a local address later is refused the second time.
    #[rstest]
    #[case(&["10.0.0.1:1"], true)]
    #[case(&["10.0.0.1:1", "127.0.0.1:1"], false)]
    #[case(&["[::1]:1"], false)]
    #[case(&["[fe80::2]:1"], false)]
    #[case(&[], true)]
    fn names_are_checked_by_their_resolved_addresses(#[case] found: &[&str], #[case] expected: bool) {
        let found: Vec<SocketAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
        assert_eq!(check_addresses(EndpointRules::default(), "m1", found.clone()).is_ok(), expected);
        assert_eq!(check_addresses(EndpointRules::new(true), "m1", found.clone()).unwrap(), found);
    }

    /// `127.1` is not an address in a URL, but the system resolver accepts it as one.
    #[rstest]
    #[case("127.1")]
    #[case("2130706433")]
    #[case("0x7f000001")]
    #[tokio::test]
    async fn the_resolver_accepts_more_notations_than_urls(#[case] name: &str) {
        let error = Resolver::new(EndpointRules::default()).call(name.parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("127.0.0.1 is a loopback address"), "{error}");
        let mut found = Resolver::new(EndpointRules::new(true)).call(name.parse().unwrap()).await.unwrap();
        assert!(found.next().unwrap().ip().is_loopback());
    }
}
