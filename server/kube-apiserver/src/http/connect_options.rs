//! Options of the connect requests `exec`, `attach`, `portforward` and `proxy`, as objects for admission. Has no side
//! effects.

use crowsnest_apimachinery::request::Query;
use crowsnest_registry::resource::Subresource;
use serde_json::{Map, Value};

/// Query parameters of a connect request, by type.
#[derive(Default)]
struct Parameters {
    flags: &'static [&'static str],
    strings: &'static [&'static str],
    string_lists: &'static [&'static str],
    integer_lists: &'static [&'static str],
}

impl Parameters {
    fn of(subresource: &str) -> Self {
        let streams = Self { flags: &["stdin", "stdout", "stderr", "tty"], strings: &["container"], ..Self::default() };
        match subresource {
            "exec" => Self { string_lists: &["command"], ..streams },
            "attach" => streams,
            "portforward" => Self { integer_lists: &["ports"], ..Self::default() },
            _ => Self::default(),
        }
    }
}

/// Parses the options from the query and, for a proxy, from `rest`, the path below the subresource.
pub(super) fn parse_connect_options(subresource: &Subresource, query: &Query, rest: &str) -> Value {
    let mut options = Map::new();
    let api_version = match subresource.group.as_str() {
        "" => subresource.version.clone(),
        group => format!("{group}/{}", subresource.version),
    };
    options.insert("kind".into(), subresource.kind.clone().into());
    options.insert("apiVersion".into(), api_version.into());
    let parameters = Parameters::of(subresource.name);
    for name in parameters.flags.iter().filter(|name| query.flag(name)) {
        options.insert((*name).into(), true.into());
    }
    for name in parameters.strings {
        if let Some(value) = query.first(name) {
            options.insert((*name).into(), value.into());
        }
    }
    for name in parameters.string_lists {
        let values: Vec<&str> = query.all(name).collect();
        if !values.is_empty() {
            options.insert((*name).into(), values.into());
        }
    }
    for name in parameters.integer_lists {
        let values: Vec<&str> = query.all(name).collect();
        if !values.is_empty() {
            let numbers = values.iter().flat_map(|list| list.split(',')).filter_map(|n| n.parse::<i32>().ok());
            options.insert((*name).into(), numbers.collect());
        }
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
    fn options_are_parsed_from_query_and_path(
        #[case] name: &'static str,
        #[case] kind: &str,
        #[case] query: &str,
        #[case] rest: &str,
        #[case] expected_options: Value,
    ) {
        let (group, version) = (String::new(), "v1".to_owned());
        let subresource = Subresource { name, kind: kind.to_owned(), group, version, verbs: Vec::new() };
        let mut expected = json!({"kind": kind, "apiVersion": "v1"});
        for (key, value) in expected_options.as_object().into_iter().flatten() {
            expected[key] = value.clone();
        }
        assert_eq!(parse_connect_options(&subresource, &Query::parse(Some(query)), rest), expected);
    }
}
