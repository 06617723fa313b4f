//! Writes to a member so far, from its audit log.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use crowsnest_tests::{Apiserver, until};
use kube::Client;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::serve::world::objects;

/// POST requests that change nothing.
const QUESTIONS: [&str; 4] =
    ["subjectaccessreviews", "selfsubjectaccessreviews", "tokenreviews", "selfsubjectrulesreviews"];

static MARKS: AtomicUsize = AtomicUsize::new(0);

pub fn writes(runtime: &Runtime, member: &Apiserver, to_member: &Client) -> Result<Vec<String>> {
    // All earlier requests are in the log when this one is.
    let mark = format!("mark-{}", MARKS.fetch_add(1, Ordering::Relaxed));
    let maps = objects(to_member, "", "v1", "ConfigMap", Some("default"));
    runtime.block_on(maps.get_opt(&mark))?;
    let mut log = String::new();
    until("the audit log to be written", || {
        log = fs::read_to_string(member.audit_log())?;
        Ok(log.contains(&mark))
    })?;
    let mut writes = Vec::new();
    // The last line may be incomplete.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let verb = event["verb"].as_str().unwrap_or_default();
        let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
        let writes_it = matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        if writes_it && event["stage"] == "ResponseComplete" && !QUESTIONS.contains(&resource) {
            writes.push(format!("{verb} {} by {}", event["requestURI"], event["user"]["username"]));
        }
    }
    Ok(writes)
}
