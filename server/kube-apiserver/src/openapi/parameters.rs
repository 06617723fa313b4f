//! Parameters of operations.

use serde_json::{Value, json};

use super::definitions::SpecVersion;

/// Name, type and description of a query parameter.
type QueryParameter = (&'static str, &'static str, &'static str);

pub(super) const PRETTY: QueryParameter = ("pretty", "string", "If 'true', the output is indented.");

/// Options of lists and watches.
pub(super) const LIST: [QueryParameter; 10] = [
    ("allowWatchBookmarks", "boolean", "Requests watch events of type BOOKMARK. Ignored unless this is a watch."),
    ("continue", "string", "Token of a previous response, which requests the next chunk of a list."),
    ("fieldSelector", "string", "Selects objects by their fields. Defaults to everything."),
    ("labelSelector", "string", "Selects objects by their labels. Defaults to everything."),
    ("limit", "integer", "Maximum number of objects in a response; `continue` requests the next ones."),
    ("resourceVersion", "string", "Version of the data to be served, or at which a watch starts."),
    ("resourceVersionMatch", "string", "How resourceVersion applies to a list: Exact or NotOlderThan."),
    ("sendInitialEvents", "boolean", "Begins a watch with events for the existing objects, followed by a bookmark."),
    ("timeoutSeconds", "integer", "Time limit of the call, whether or not there is activity."),
    ("watch", "boolean", "Responds with a stream of changes instead of a list."),
];

/// Options of lists that do not apply to the deletion of a collection of built-in objects.
const WATCH_ONLY: [&str; 2] = ["allowWatchBookmarks", "watch"];

pub(super) const DRY_RUN: QueryParameter =
    ("dryRun", "string", "If 'All', the request is processed without being persisted.");

/// Options of creates, updates and patches.
pub(super) const WRITE: [QueryParameter; 3] = [
    DRY_RUN,
    ("fieldManager", "string", "Name of the actor to whom the changed fields belong. Required for apply patches."),
    ("fieldValidation", "string", "What happens with unknown and duplicate fields: Ignore, Warn or Strict."),
];

pub(super) const FORCE: QueryParameter =
    ("force", "boolean", "Takes conflicting fields over from other managers. For apply patches only.");

/// Options of deletes.
pub(super) const DELETE: [QueryParameter; 5] = [
    DRY_RUN,
    ("gracePeriodSeconds", "integer", "Seconds before the object is deleted. Zero deletes it immediately."),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Deletes an object that cannot be read from storage. Finalizers are ignored.",
    ),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy. True leaves dependents behind."),
    ("propagationPolicy", "string", "How dependents are deleted: Orphan, Background or Foreground."),
];

/// Option of reads of custom resources.
pub(super) const GET_CUSTOM: [QueryParameter; 1] = [LIST[5]];

/// Options of the deletion of a collection of built-in objects, in alphabetic order.
pub(super) fn delete_collection() -> Vec<QueryParameter> {
    let list_options = LIST.into_iter().filter(|(name, ..)| !WATCH_ONLY.contains(name));
    let mut all: Vec<QueryParameter> = DELETE.into_iter().chain(list_options).collect();
    all.sort_unstable();
    all
}

/// Options of a subresource that streams or connects, by the kind of its options.
pub(super) fn connect(kind: &str) -> &'static [QueryParameter] {
    const TARGET: &str = "Path of the target to which the request is sent.";
    const CONTAINER: QueryParameter = ("container", "string", "Container of the pod. Defaults to the only one.");
    const STDERR: QueryParameter = ("stderr", "boolean", "Redirects standard error of the container for this call.");
    const STDIN: QueryParameter = ("stdin", "boolean", "Redirects standard input of the container for this call.");
    const STDOUT: QueryParameter = ("stdout", "boolean", "Redirects standard output of the container for this call.");
    const TTY: QueryParameter = ("tty", "boolean", "Allocates a terminal for the call.");
    match kind {
        "PodExecOptions" => &[
            ("command", "string", "Command to be executed, with its arguments. Not executed within a shell."),
            CONTAINER,
            STDERR,
            STDIN,
            STDOUT,
            TTY,
        ],
        "PodAttachOptions" => &[CONTAINER, STDERR, STDIN, STDOUT, TTY],
        "PodPortForwardOptions" => &[("ports", "integer", "Ports to be forwarded. Required for WebSockets.")],
        "PodProxyOptions" | "NodeProxyOptions" | "ServiceProxyOptions" => &[("path", "string", TARGET)],
        "PodLogOptions" => &[
            CONTAINER,
            ("follow", "boolean", "Follows the log stream of the pod."),
            ("insecureSkipTLSVerifyBackend", "boolean", "Accepts any serving certificate of the kubelet."),
            ("limitBytes", "integer", "Number of bytes after which the log is cut off."),
            ("previous", "boolean", "Reads the log of the container's previous instance."),
            ("sinceSeconds", "integer", "Age in seconds of the oldest line."),
            ("stream", "string", "Stream of the container: All, Stdout or Stderr."),
            ("tailLines", "integer", "Number of lines from the end of the log."),
            ("timestamps", "boolean", "Begins each line with its time."),
        ],
        _ => &[],
    }
}

/// A query parameter.
pub(super) fn query((name, kind, description): QueryParameter, spec_version: SpecVersion) -> Value {
    with_type(json!({"name": name, "in": "query", "description": description}), kind, spec_version)
}

/// A path parameter.
pub(super) fn path(name: &str, description: &str, spec_version: SpecVersion) -> Value {
    with_type(json!({"name": name, "in": "path", "description": description, "required": true}), "string", spec_version)
}

/// Sets the type of a parameter: in the parameter in v2, in its schema in v3.
fn with_type(mut parameter: Value, kind: &str, spec_version: SpecVersion) -> Value {
    match spec_version {
        SpecVersion::V2 => {
            parameter["type"] = kind.into();
            parameter["uniqueItems"] = true.into();
        }
        SpecVersion::V3 => parameter["schema"] = json!({"type": kind, "uniqueItems": true}),
    }
    parameter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_of_collections_has_options_of_lists_and_deletes() {
        let names: Vec<&str> = delete_collection().into_iter().map(|(name, ..)| name).collect();
        assert!(names.is_sorted() && names.contains(&"continue") && names.contains(&"dryRun"));
        assert!(!names.contains(&"watch"));
        assert_eq!(GET_CUSTOM[0].0, "resourceVersion");
    }
}
