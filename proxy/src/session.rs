//! Sessions: upgraded connections to a member (exec, attach, port-forward). Decides whether the member's Cluster
//! allows them, and logs each of them. The content is counted but not inspected.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crowsnest_api::constants::annotation::{EXEC, EXEC_DISABLED, EXEC_ENABLED};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::{Query, ResourcePath};
use crowsnest_members::Member;
use percent_encoding::percent_decode_str;

use crate::Caller;

use crate::relay::ByteCounts;

/// Maximum length in characters of a logged path or command.
const MAX_LOGGED_CHARS: usize = 512;

/// Reason why a member's Cluster forbids a request; None if it does not.
pub fn forbidden_reason(member: &Member, path: &str, is_upgrade: bool) -> Option<String> {
    let annotations = member.cluster().metadata.annotations.as_ref()?;
    refusal_reason(annotations.get(EXEC).map(String::as_str), path, is_upgrade)
}

/// Reason why a value of the annotation forbids a request. An unknown value counts as disabled.
fn refusal_reason(annotation: Option<&str>, path: &str, is_upgrade: bool) -> Option<String> {
    let value = annotation.filter(|value| *value != EXEC_ENABLED)?;
    if !is_upgrade && !can_open_session(path) {
        return None;
    }
    let unknown_value = match value {
        EXEC_DISABLED => String::new(),
        _ => format!(", which is neither {EXEC_ENABLED:?} nor {EXEC_DISABLED:?} and counts as the latter,"),
    };
    Some(format!(
        "its annotation {EXEC}: {value:?}{unknown_value} forbids exec, attach, port-forward and proxy into its pods, services and \
         nodes, and all other upgraded connections"
    ))
}

/// True if a path can open a connection into a pod, a service or a node. The proxy of a node is its kubelet, which also runs commands.
/// Ambiguous paths, which servers may decode differently, are included.
fn can_open_session(path: &str) -> bool {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    if decoded.contains('%') || decoded.split('/').any(|part| matches!(part, "." | "..")) {
        return true;
    }
    let Some(resource_path) = ResourcePath::parse(&decoded) else { return false };
    match (resource_path.group.as_str(), resource_path.resource.as_str(), resource_path.subresource.as_str()) {
        // Deprecated prefix for the subresource.
        ("", ..) if resource_path.prefix == "proxy" => true,
        ("", "pods", subresource) => matches!(subresource, "exec" | "attach" | "portforward" | "proxy"),
        ("", "services" | "nodes", subresource) => subresource == "proxy",
        _ => false,
    }
}

/// User, target and command of a session.
#[derive(Debug, PartialEq, Eq)]
pub struct Session {
    user: String,
    cluster: ClusterName,
    path: String,
    subresource: String,
    /// Command of an exec request.
    command: Option<String>,
}

/// A running session, whose end is logged.
pub struct RunningSession {
    session: Session,
    started_at: Instant,
    byte_counts: ByteCounts,
}

impl Session {
    /// A session for a request. `path` and `query` are those of the member.
    pub fn new(caller: &Caller, cluster: &ClusterName, path: &str, query: Option<&str>) -> Self {
        let subresource = ResourcePath::parse(path).map(|resource_path| resource_path.subresource).unwrap_or_default();
        let command = (subresource == "exec").then(|| {
            let query = Query::parse(query);
            truncate(&query.all("command").collect::<Vec<_>>().join(" "))
        });
        Self { user: caller.name.clone(), cluster: cluster.clone(), path: truncate(path), subresource, command }
    }

    /// Logs the start of the session.
    pub fn start(self) -> RunningSession {
        let Self { user, cluster, path, subresource, command } = &self;
        // Quoted, so that no value can forge a log line.
        tracing::info!(?user, %cluster, ?path, ?subresource, ?command, "session started");
        RunningSession { session: self, started_at: Instant::now(), byte_counts: ByteCounts::default() }
    }
}

impl RunningSession {
    pub fn byte_counts(&self) -> &ByteCounts {
        &self.byte_counts
    }

    /// Logs the end of the session.
    pub fn end(self) {
        let Session { user, cluster, path, subresource, command } = &self.session;
        let seconds = self.started_at.elapsed().as_secs_f32();
        let (sent, received) =
            (self.byte_counts.sent.load(Ordering::Relaxed), self.byte_counts.received.load(Ordering::Relaxed));
        tracing::info!(?user, %cluster, ?path, ?subresource, ?command, seconds, sent, received, "session ended");
    }
}

/// Shortens a text to [`MAX_LOGGED_CHARS`].
fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_LOGGED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "/api/v1/namespaces/ns/pods/p";

    #[rstest::rstest]
    #[case::exec(&format!("{POD}/exec"), false, true)]
    #[case::attach(&format!("{POD}/attach"), true, true)]
    #[case::port_forward(&format!("{POD}/portforward"), true, true)]
    #[case::proxy(&format!("{POD}/proxy/x"), false, true)]
    #[case::encoded(&format!("{POD}/%65xec"), false, true)]
    #[case::encoded_slash("/api/v1/namespaces/ns/pods%2Fp%2Fexec", false, true)]
    #[case::encoded_twice(&format!("{POD}/%2565xec"), false, true)]
    #[case::two_slashes("//api/v1//namespaces/ns/pods/p/exec", false, true)]
    #[case::dots("/api/v1/x/../namespaces/ns/pods/p/log", false, true)]
    #[case::no_namespace("/api/v1/pods/p/exec", false, true)]
    #[case::service("/api/v1/namespaces/ns/services/s:80/proxy/", false, true)]
    #[case::kubelet("/api/v1/nodes/n/proxy/run/ns/p/c", false, true)]
    #[case::deprecated_prefix("/api/v1/proxy/namespaces/ns/pods/p", false, true)]
    #[case::other_kinds(
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/v/console",
        true,
        true
    )]
    #[case::proxy_of_another_control_plane(
        "/apis/cluster.karmada.io/v1alpha1/clusters/m/proxy/api/v1/pods",
        true,
        true
    )]
    #[case::logs(&format!("{POD}/log"), false, false)]
    #[case::reads(POD, false, false)]
    #[case::namespace_and_pod_named_exec("/api/v1/namespaces/exec/pods/exec", false, false)]
    #[case::other_group("/apis/g.io/v1/namespaces/ns/pods/p/exec", false, false)]
    #[case::version("/version", false, false)]
    fn a_cluster_may_forbid_sessions(#[case] path: &str, #[case] is_upgrade: bool, #[case] is_session: bool) {
        for (annotation, expected) in
            [(None, false), (Some("enabled"), false), (Some("disabled"), is_session), (Some("off"), is_session)]
        {
            let forbidden = refusal_reason(annotation, path, is_upgrade);
            assert_eq!(forbidden.is_some(), expected, "{annotation:?} {path}");
            if let (Some(reason), Some(value)) = (forbidden, annotation) {
                assert!(reason.starts_with(&format!("its annotation proxy.crowsnest.io/exec: {value:?}")), "{reason}");
                assert_eq!(reason.contains("neither"), value == "off", "{reason}");
            }
        }
    }

    #[rstest::rstest]
    #[case("exec", "command=sh&command=-c&command=echo+%24A&stdin=true", Some("sh -c echo $A"))]
    #[case("attach", "command=no", None)]
    #[case("portforward", "ports=80", None)]
    fn only_exec_sessions_have_a_command(
        #[case] subresource: &str,
        #[case] query: &str,
        #[case] command: Option<&str>,
    ) {
        let caller = Caller { name: "alice".into(), ..Caller::default() };
        let cluster = ClusterName::parse("m1").unwrap();
        let session = Session::new(&caller, &cluster, &format!("{POD}/{subresource}"), Some(query));
        assert_eq!((session.subresource.as_str(), session.command.as_deref()), (subresource, command));
        let long = format!("command={}", "x".repeat(MAX_LOGGED_CHARS + 1));
        let session = Session::new(&caller, &cluster, &format!("{POD}/exec"), Some(&long));
        assert_eq!(session.command.unwrap(), format!("{}…", "x".repeat(MAX_LOGGED_CHARS)));
    }
}
