//! Takes all that is logged.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Everything that is logged at any level, in one text.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<String>>);

impl Logs {
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, metadata: &tracing::Metadata<'_>, fields: impl FnOnce(&mut Fields)) {
        let mut text = Fields(format!("[{} {}]", metadata.target(), metadata.name()));
        fields(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(&(text.0 + "\n"));
    }
}

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Logs {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.note(span.metadata(), |fields| span.record(fields));
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        let mut text = Fields(String::new());
        values.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text.0);
    }

    fn event(&self, event: &tracing::Event<'_>) {
        self.note(event.metadata(), |fields| event.record(fields));
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
