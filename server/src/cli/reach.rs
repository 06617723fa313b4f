//! Members and the fleet through the control plane's address, as the caller.

use anyhow::Context;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// A client for one member.
pub(super) fn member(config: &kube::Config, cluster: &str) -> anyhow::Result<kube::Client> {
    let cluster = utf8_percent_encode(cluster, NON_ALPHANUMERIC).to_string().replace("%2D", "-");
    below(config, &format!("/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/proxy"))
        .with_context(|| format!("reaching cluster {cluster}"))
}

/// A client for all members as if they were one cluster.
pub(super) fn fleet(config: &kube::Config) -> anyhow::Result<kube::Client> {
    below(config, "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy").context("reaching the fleet")
}

fn below(config: &kube::Config, path: &str) -> anyhow::Result<kube::Client> {
    let mut config = config.clone();
    let control_plane = config.cluster_url.to_string();
    config.cluster_url = format!("{}{path}", control_plane.trim_end_matches('/')).parse()?;
    // A member that does not answer is a 503 of the proxy, which knows when to ask again: it is told at once.
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

/// What an API server said, without the layers it came through.
pub(crate) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
