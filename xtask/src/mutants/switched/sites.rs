//! Where code can be changed: the expressions, arms and functions that cargo-mutants names by their place.

use std::collections::HashMap;

use anyhow::{Context, Result};
use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Expr, Member, Pat, Signature};

use super::change::Genre;
use super::edits::Range;

/// The sites of a file, by the byte at which cargo-mutants says that they begin.
#[derive(Debug, Default)]
pub struct Sites(HashMap<(usize, Genre), Site>);

/// A place that can be changed.
#[derive(Clone, Debug)]
pub struct Site {
    pub kind: Kind,
    /// It is evaluated when the code is compiled, where no switch can be read.
    pub is_const: bool,
}

/// What is there.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A function whose body begins here.
    Body(usize),
    Binary {
        left: Range,
        right: Range,
    },
    Unary {
        all: Range,
        operand: Range,
    },
    /// An arm of a match: where its pattern ends, and its guard.
    Arm {
        pattern_end: usize,
        guard: Option<Range>,
    },
    Guard(Range),
    /// The value of a field, and an expression for what the field is without it.
    Field {
        value: Range,
        without: String,
    },
}

impl Sites {
    pub fn of(text: &str) -> Result<Sites> {
        let file = syn::parse_file(text).context("it is not Rust")?;
        let mut finder =
            Finder { lines: Lines::of(text), sites: Sites::default(), in_const: false };
        finder.visit_file(&file);
        Ok(finder.sites)
    }

    pub fn get(&self, at: usize, genre: Genre) -> Option<&Site> {
        self.0.get(&(at, genre))
    }
}

/// Places in a text.
#[derive(Debug)]
pub struct Lines<'a> {
    text: &'a str,
    begins: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn of(text: &'a str) -> Lines<'a> {
        let after = text.match_indices('\n').map(|(at, _)| at + 1);
        Lines { text, begins: std::iter::once(0).chain(after).collect() }
    }

    /// The byte of a line, from 1 on, and a column in letters, from 0 on.
    pub fn byte(&self, line: usize, column: usize) -> usize {
        let begin = line.checked_sub(1).and_then(|line| self.begins.get(line));
        let begin = begin.copied().unwrap_or(self.text.len());
        begin + self.text[begin..].chars().take(column).map(char::len_utf8).sum::<usize>()
    }
}

struct Finder<'a> {
    lines: Lines<'a>,
    sites: Sites,
    in_const: bool,
}

impl Finder<'_> {
    fn byte(&self, place: LineColumn) -> usize {
        self.lines.byte(place.line, place.column)
    }

    fn range(&self, of: &impl Spanned) -> Range {
        let span = of.span();
        self.byte(span.start())..self.byte(span.end())
    }

    fn text(&self, of: &impl Spanned) -> &str {
        &self.lines.text[self.range(of)]
    }

    fn add(&mut self, at: usize, genre: Genre, kind: Kind) {
        let is_const = self.in_const;
        self.sites.0.insert((at, genre), Site { kind, is_const });
    }

    fn in_const(&mut self, is_const: bool, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.in_const, is_const);
        visit(self);
        self.in_const = outer;
    }

    fn function(&mut self, signature: &Signature, block: &Block, visit: impl FnOnce(&mut Self)) {
        self.in_const(signature.constness.is_some(), |finder| {
            let open = finder.byte(block.brace_token.span.open().end());
            // cargo-mutants names the body by its first statement.
            let first = block.stmts.first().map(|first| finder.range(first).start);
            finder.add(first.unwrap_or(open), Genre::Function, Kind::Body(open));
            visit(finder);
        });
    }
}

/// Whether it binds names: then it can stand only where it is.
fn binds(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.in_const(true, |finder| visit::visit_item_const(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.in_const(true, |finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.in_const(true, |finder| visit::visit_trait_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.in_const(true, |finder| visit::visit_item_static(finder, item));
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.in_const(true, |finder| visit::visit_type_array(finder, array));
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.in_const(true, |finder| finder.visit_expr(&repeat.len));
    }

    fn visit_expr_const(&mut self, block: &'ast syn::ExprConst) {
        self.in_const(true, |finder| visit::visit_expr_const(finder, block));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.in_const(true, |finder| visit::visit_variant(finder, variant));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block, |finder| visit::visit_trait_item_fn(finder, item));
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !binds(&binary.left) && !binds(&binary.right) {
            let (left, right) = (self.range(&binary.left), self.range(&binary.right));
            let at = self.range(&binary.op).start;
            self.add(at, Genre::Binary, Kind::Binary { left, right });
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let (at, operand) = (self.range(&unary.op).start, self.range(&unary.expr));
        self.add(at, Genre::Unary, Kind::Unary { all: at..operand.end, operand });
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let (pattern, guard) = match &arm.pat {
            Pat::Guard(guarded) => (guarded.pat.as_ref(), Some(guarded.guard.as_ref())),
            pattern => (pattern, None),
        };
        if !guard.is_some_and(binds) {
            let guard = guard.map(|guard| self.range(guard));
            let (at, pattern_end) = (self.range(arm).start, self.range(pattern).end);
            self.add(at, Genre::Arm, Kind::Arm { pattern_end, guard: guard.clone() });
            if let Some(guard) = guard {
                self.add(guard.start, Genre::Guard, Kind::Guard(guard));
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        let rest = made.rest.as_ref().map(|rest| match self.text(rest.as_ref()) {
            "Default::default()" => format!("<{} as Default>::default()", self.text(&made.path)),
            rest => format!("({rest})"),
        });
        for field in made.fields.iter().filter(|field| field.colon_token.is_some()) {
            if let (Some(rest), Member::Named(name)) = (&rest, &field.member) {
                let without = format!("{rest}.{name}");
                let (at, value) = (self.range(field).start, self.range(&field.expr));
                self.add(at, Genre::Field, Kind::Field { value, without });
            }
        }
        visit::visit_expr_struct(self, made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_found_where_they_begin() {
        let text = "fn f(a: u8) -> bool {\n    /*\u{e9}*/ !(a < 1 + 2)\n}\nconst C: u8 = 1 + 2;\n";
        let sites = Sites::of(text).unwrap();
        let is_const = |part: &str, genre| {
            let at = text.find(part).unwrap();
            sites.get(at, genre).map(|site| site.is_const)
        };
        assert_eq!(is_const("!(a", Genre::Function), Some(false));
        assert_eq!(is_const("!(a", Genre::Unary), Some(false));
        assert_eq!(is_const("< 1", Genre::Binary), Some(false));
        let last = text.rfind('+').unwrap();
        assert_eq!(sites.get(last, Genre::Binary).map(|site| site.is_const), Some(true));
        let Kind::Binary { left, right } = &sites.get(last, Genre::Binary).unwrap().kind else {
            panic!("a sum");
        };
        assert_eq!((&text[left.clone()], &text[right.clone()]), ("1", "2"));
    }

    #[test]
    fn an_expression_that_binds_names_is_no_site() {
        let text = "fn f(a: Option<u8>, b: bool) { if let Some(_) = a && b && !b {} }";
        let sites = Sites::of(text).unwrap();
        assert!(text.match_indices("&&").all(|(at, _)| sites.get(at, Genre::Binary).is_none()));
        assert!(sites.get(text.find('!').unwrap(), Genre::Unary).is_some());
    }
}
