//! Options of connect requests as admission receives them: those of `exec`, `attach`, `portforward` and `proxy`.
//! Pure.

use crowsnest_apimachinery::request::Query;
use crowsnest_registry::resource::Subresource;
use serde_json::{Map, Value};

/// Type of a query parameter.
enum As {
    Flag,
    Text,
    Texts,
    Numbers,
}

/// Reads the options from the query and, for a proxy, from the path.
pub(super) fn options(subresource: &Subresource, query: &Query, rest: &str) -> Value {
    let parameters: &[(&str, As)] = match subresource.name {
        "exec" => &[
            ("stdin", As::Flag),
            ("stdout", As::Flag),
            ("stderr", As::Flag),
            ("tty", As::Flag),
            ("container", As::Text),
            ("command", As::Texts),
        ],
        "attach" => &[
            ("stdin", As::Flag),
            ("stdout", As::Flag),
            ("stderr", As::Flag),
            ("tty", As::Flag),
            ("container", As::Text),
        ],
        "portforward" => &[("ports", As::Numbers)],
        _ => &[],
    };
    let mut options = Map::new();
    let api_version = match subresource.group.as_str() {
        "" => subresource.version.clone(),
        group => format!("{group}/{}", subresource.version),
    };
    options.insert("kind".into(), subresource.kind.clone().into());
    options.insert("apiVersion".into(), api_version.into());
    for (name, read_as) in parameters {
        let given: Vec<&str> = query.all(name).collect();
        let value = match (read_as, given.first()) {
            (_, None) => continue,
            (As::Flag, Some(_)) if !query.flag(name) => continue,
            (As::Flag, Some(_)) => true.into(),
            (As::Text, Some(first)) => (*first).into(),
            (As::Texts, Some(_)) => given.into(),
            (As::Numbers, Some(_)) => {
                given.iter().flat_map(|list| list.split(',')).filter_map(|n| n.parse::<i32>().ok()).collect()
            }
        };
        options.insert((*name).into(), value);
    }
    if subresource.name == "proxy" && !rest.is_empty() {
        options.insert("path".into(), format!("/{rest}").into());
    }
    Value::Object(options)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("exec", "PodExecOptions", "command=ls&command=-l&stdin=true&stdout=false&container=c", "",
        json!({"command": ["ls", "-l"], "stdin": true, "container": "c"}))]
    #[case("attach", "PodAttachOptions", "stdout=1&command=no", "", json!({"stdout": true}))]
    #[case("portforward", "PodPortForwardOptions", "ports=80&ports=81", "", json!({"ports": [80, 81]}))]
    #[case("proxy", "ServiceProxyOptions", "path=%2Fno", "a/b", json!({"path": "/a/b"}))]
    #[case("proxy", "NodeProxyOptions", "", "", json!({}))]
    fn options_are_read_from_the_query(
        #[case] name: &'static str,
        #[case] kind: &str,
        #[case] query: &str,
        #[case] rest: &str,
        #[case] more: Value,
    ) {
        let (group, version) = (String::new(), "v1".to_owned());
        let subresource = Subresource { name, kind: kind.to_owned(), group, version, verbs: Vec::new() };
        let mut wanted = json!({"kind": kind, "apiVersion": "v1"});
        for (key, value) in more.as_object().into_iter().flatten() {
            wanted[key] = value.clone();
        }
        assert_eq!(options(&subresource, &Query::parse(Some(query)), rest), wanted);
    }
}
