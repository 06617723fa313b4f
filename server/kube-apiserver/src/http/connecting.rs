//! Options of connect requests as admission receives them: those of `exec`, `attach`, `portforward` and `proxy`.
//! Pure.

use crowsnest_apimachinery::request::Query;
use crowsnest_registry::resource::Subresource;
use serde_json::{Map, Value};

/// Type of a query parameter.
enum ParameterType {
    Flag,
    Text,
    Texts,
    Numbers,
}

/// Reads the options from the query and, for a proxy, from the path.
pub(super) fn parse_options(subresource: &Subresource, query: &Query, rest: &str) -> Value {
    let parameters: &[(&str, ParameterType)] = match subresource.name {
        "exec" => &[
            ("stdin", ParameterType::Flag),
            ("stdout", ParameterType::Flag),
            ("stderr", ParameterType::Flag),
            ("tty", ParameterType::Flag),
            ("container", ParameterType::Text),
            ("command", ParameterType::Texts),
        ],
        "attach" => &[
            ("stdin", ParameterType::Flag),
            ("stdout", ParameterType::Flag),
            ("stderr", ParameterType::Flag),
            ("tty", ParameterType::Flag),
            ("container", ParameterType::Text),
        ],
        "portforward" => &[("ports", ParameterType::Numbers)],
        _ => &[],
    };
    let mut options = Map::new();
    let api_version = match subresource.group.as_str() {
        "" => subresource.version.clone(),
        group => format!("{group}/{}", subresource.version),
    };
    options.insert("kind".into(), subresource.kind.clone().into());
    options.insert("apiVersion".into(), api_version.into());
    for (name, parameter_type) in parameters {
        let given: Vec<&str> = query.all(name).collect();
        let value = match (parameter_type, given.first()) {
            (_, None) => continue,
            (ParameterType::Flag, Some(_)) if !query.flag(name) => continue,
            (ParameterType::Flag, Some(_)) => true.into(),
            (ParameterType::Text, Some(first)) => (*first).into(),
            (ParameterType::Texts, Some(_)) => given.into(),
            (ParameterType::Numbers, Some(_)) => {
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
        let mut expected = json!({"kind": kind, "apiVersion": "v1"});
        for (key, value) in more.as_object().into_iter().flatten() {
            expected[key] = value.clone();
        }
        assert_eq!(parse_options(&subresource, &Query::parse(Some(query)), rest), expected);
    }
}
