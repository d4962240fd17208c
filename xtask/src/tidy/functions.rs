//! Functions fit a screen and take few parameters.

use syn::visit::{self, Visit};
use syn::{Block, FnArg, Signature};

use super::source::Source;
use super::{Problem, Rule};

const LINES_MAX: usize = 70;
const PARAMS_MAX: usize = 5;

pub fn check(source: &Source) -> Vec<Problem> {
    let mut finder = Finder { source, problems: Vec::new() };
    finder.visit_file(&source.ast);
    finder.problems
}

struct Finder<'a> {
    source: &'a Source,
    problems: Vec<Problem>,
}

/// What is counted of a function, and what to do where it is too much.
struct Measured {
    size: usize,
    max: usize,
    what: String,
    fix: &'static str,
}

impl Finder<'_> {
    fn check(&mut self, signature: &Signature, body: Option<&Block>) {
        let line = signature.fn_token.span.start().line;
        if self.source.is_test(line) {
            return;
        }
        let name = &signature.ident;
        if let Some(body) = body {
            let lines = body.brace_token.span.close().end().line - line + 1;
            let fix = "split it into named steps (a table of match arms may ask for an exception)";
            let found = Measured {
                size: lines,
                max: LINES_MAX,
                what: format!("fn {name} has {lines} lines"),
                fix,
            };
            self.compare(Rule::FnLines, line, found);
        }
        let params =
            signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).count();
        let fix = "group those that travel together into a struct";
        let what = format!("fn {name} has {params} parameters");
        self.compare(Rule::FnParams, line, Measured { size: params, max: PARAMS_MAX, what, fix });
    }

    fn compare(&mut self, rule: Rule, line: usize, found: Measured) {
        let Measured { size, max, what, fix } = found;
        if size > max && !self.source.allows(rule.name(), line) {
            self.problems.push(Problem::new(
                &self.source.path,
                line,
                format!("{what}, more than {max}"),
                fix,
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check(&item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check(&item.sig, Some(&item.block));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.check(&item.sig, item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let source = Source::parse("crates/a/src/a.rs", text).unwrap();
        check(&source).iter().map(ToString::to_string).collect()
    }

    fn long(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_are_found() {
        assert!(problems(&long(70)).is_empty());
        assert!(problems(&long(71))[0].contains("a.rs:1: fn long has 71 lines"));
        assert!(problems(&format!("impl A {{ {} }}", long(71)))[0].contains("71 lines"));
        assert!(problems(&format!("trait A {{ {} }}", long(71)))[0].contains("71 lines"));
    }

    #[test]
    fn many_parameters_are_found_and_self_is_none() {
        assert!(problems("impl A { fn five(&self, a: A, b: A, c: A, d: A, e: A) {} }").is_empty());
        assert!(
            problems("fn six(a: A, b: A, c: A, d: A, e: A, f: A) {}")[0].contains("6 parameters")
        );
    }

    #[test]
    fn exceptions_and_tests_are_left_alone() {
        assert!(
            problems(&format!("// tidy: allow(fn-lines): one arm a wire code\n{}", long(90)))
                .is_empty()
        );
        assert!(problems(&format!("#[cfg(test)]\nmod tests {{ {} }}", long(90))).is_empty());
    }
}
