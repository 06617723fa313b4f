//! Server-sent events, line by line.

/// What is known of the next event.
#[derive(Debug, Default)]
pub(crate) struct Events {
    name: String,
    data: String,
}

impl Events {
    /// Takes the next line in; an event's name and data when it was the last of one.
    pub(crate) fn line(&mut self, line: &str) -> Option<(String, String)> {
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            return (!data.is_empty()).then_some((name, data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // Comments keep the connection alive; nothing else is sent.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let text = ":\n\nevent: line\ndata: {\"a\":\ndata: 1}\n\nevent: done\ndata: {}\n\nevent: begun\ndata: {";
        let mut events = Events::default();
        let read: Vec<(String, String)> = text.lines().filter_map(|line| events.line(line)).collect();
        let expected = [("line", "{\"a\":\n1}"), ("done", "{}")];
        assert_eq!(read, expected.map(|(name, data)| (name.to_owned(), data.to_owned())));
    }
}
