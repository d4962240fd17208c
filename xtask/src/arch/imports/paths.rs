//! Which file of its crate a path in a file leads to.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenTree;
use syn::visit::Visit;
use syn::{Item, ItemMod, ItemUse, UseTree, Visibility};

use super::Imports;
use crate::tidy::source::{Source, each_token, is_ident};

/// Re-exports of re-exports are followed this far.
const REEXPORTS_MAX: usize = 8;

/// The segments of a path.
type Segments = Vec<String>;

/// The modules of one crate that are files of their own.
pub struct CrateFiles<'a> {
    files: Vec<(Segments, &'a Source)>,
    /// Module → name that it re-exports → the path of what that is.
    reexports: BTreeMap<Segments, BTreeMap<String, Segments>>,
}

impl<'a> CrateFiles<'a> {
    /// Those of the crate in `dir`.
    pub fn new(dir: &str, sources: &[&'a Source]) -> Self {
        let module = |source: &&'a Source| Some((module_of(dir, &source.path)?, *source));
        let files = sources.iter().filter_map(module).collect();
        let mut all = CrateFiles { files, reexports: BTreeMap::new() };
        for at in 0..all.files.len() {
            let names = all
                .paths_in(at)
                .into_iter()
                .filter(|path| path.is_reexport)
                .map(|path| (path.name, path.segments))
                .collect();
            all.reexports.insert(all.files[at].0.clone(), names);
        }
        all
    }

    /// What each file imports.
    pub fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (at, (_, source)) in self.files.iter().enumerate() {
            let mut targets = BTreeSet::new();
            for path in self.paths_in(at) {
                if path.is_reexport && uses_of(source, &path.name) < 2 {
                    continue;
                }
                let target = self.file_of(&path.segments, REEXPORTS_MAX);
                targets.extend(target.filter(|target| **target != source.path).cloned());
            }
            if !targets.is_empty() {
                imports.insert(source.path.clone(), targets);
            }
        }
        imports
    }

    fn paths_in(&self, at: usize) -> Vec<FoundPath> {
        let (module, source) = &self.files[at];
        let mut reader =
            PathReader { files: self, source, module: module.clone(), found: Vec::new() };
        reader.visit_file(&source.ast);
        reader.found
    }

    fn is_module(&self, segments: &[String]) -> bool {
        self.files.iter().any(|(module, _)| module == segments)
    }

    /// The file that defines what a path names; `None` for paths out of the crate.
    fn file_of(&self, path: &[String], reexports_max: usize) -> Option<&'a String> {
        let len = (0..=path.len()).rev().find(|len| self.is_module(&path[..*len]))?;
        let module = &path[..len];
        let moved = path.get(len).and_then(|name| self.reexports.get(module)?.get(name));
        if let Some(moved) = moved.filter(|_| reexports_max > 0) {
            let full: Segments = moved.iter().chain(&path[len + 1..]).cloned().collect();
            return self.file_of(&full, reexports_max - 1);
        }
        self.files.iter().find(|(other, _)| other == module).map(|(_, source)| &source.path)
    }
}

/// The module of a file: `src/a/mod.rs` and `src/a.rs` are both `a`.
fn module_of(dir: &str, path: &str) -> Option<Segments> {
    let rest = path.strip_prefix(dir)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let mut segments: Segments = rest.split('/').map(str::to_owned).collect();
    if segments.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        segments.pop();
    }
    Some(segments)
}

/// How often a name occurs in a file.
fn uses_of(source: &Source, name: &str) -> usize {
    let mut uses = 0;
    each_token(&source.tokens, &mut |tokens: &[TokenTree]| {
        uses += usize::from(is_ident(&tokens[0], name));
    });
    uses
}

/// A path in a file, from the root of the crate.
struct FoundPath {
    segments: Segments,
    /// The name that it has in the file.
    name: String,
    is_reexport: bool,
}

struct PathReader<'a> {
    files: &'a CrateFiles<'a>,
    source: &'a Source,
    module: Segments,
    found: Vec<FoundPath>,
}

impl PathReader<'_> {
    /// From the root of the crate; `None` for another crate, or a name of this file.
    fn absolute(&self, path: &[String]) -> Option<Segments> {
        let mut base = self.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
                base.extend_from_slice(rest);
                return Some(base);
            }
            first => {
                base.push(first.to_owned());
                let is_child = self.files.is_module(&base);
                base.pop();
                if !is_child {
                    return None;
                }
                base.extend_from_slice(path);
                return Some(base);
            }
        }
        base.extend_from_slice(&rest[1..]);
        Some(base)
    }

    fn add(&mut self, path: &[String], name: String, is_reexport: bool) {
        if let Some(segments) = self.absolute(path) {
            self.found.push(FoundPath { segments, name, is_reexport });
        }
    }

    fn add_tree(&mut self, tree: &UseTree, before: &[String], is_reexport: bool) {
        let with = |name: &syn::Ident| -> Segments {
            before.iter().cloned().chain([name.to_string()]).collect()
        };
        match tree {
            UseTree::Path(path) => self.add_tree(&path.tree, &with(&path.ident), is_reexport),
            UseTree::Name(name) if name.ident == "self" => {
                self.add(before, before.last().cloned().unwrap_or_default(), is_reexport)
            }
            UseTree::Name(name) => {
                self.add(&with(&name.ident), name.ident.to_string(), is_reexport)
            }
            UseTree::Rename(rename) => {
                self.add(&with(&rename.ident), rename.rename.to_string(), is_reexport)
            }
            UseTree::Glob(_) => self.add(before, String::new(), false),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(tree, before, is_reexport))
            }
        }
    }

    fn is_test(&self, item: &Item) -> bool {
        let line = syn::spanned::Spanned::span(item).start().line;
        self.source.is_test(line)
    }
}

impl<'ast> Visit<'ast> for PathReader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !self.is_test(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        self.add_tree(&item.tree, &[], is_reexport);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if segments.len() > 1 {
            self.add(&segments, String::new(), false);
        }
        syn::visit::visit_path(self, path);
    }

    /// A macro of the crate is at its root, wherever it is defined.
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}
