/* Spaces of Penstock's environment protocol in C and C++: the leaves of rows, and their description as JSON. docs/socket.md.
 *
 * A plain space is one leaf without a key; leaves with keys are a Dict's, in this order. */
#ifndef PENSTOCK_SPACES_H
#define PENSTOCK_SPACES_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const size_t PENSTOCK_FRAME_BYTES = (size_t)1 << 30;

/* Kinds and types of leaves. Choices are int64, and bits int8. */
enum { PENSTOCK_BOX, PENSTOCK_DISCRETE, PENSTOCK_MULTI_DISCRETE, PENSTOCK_MULTI_BINARY };
enum { PENSTOCK_FLOAT32, PENSTOCK_FLOAT64, PENSTOCK_UINT8, PENSTOCK_INT8, PENSTOCK_INT32, PENSTOCK_INT64 };

/* A part of a Dict observation or action, or the only one of a plain space. */
typedef struct {
  const char *key; /* NULL for the only one; no quotes or backslashes */
  int kind;
  int type;         /* of a box */
  size_t axes;      /* 0: one number; a choice has none */
  size_t shape[8];  /* images are height, width, channels */
  double low, high; /* of a box: bounds of every number, -INFINITY and INFINITY for none */
  int64_t choices;  /* of each number of a discrete or multi-discrete leaf, counted from 0 */
} penstock_leaf;

static inline size_t penstock_numbers(const penstock_leaf *leaf) {
  size_t axis, numbers = 1;
  for (axis = 0; axis < leaf->axes; ++axis) numbers *= leaf->shape[axis];
  return numbers;
}

static inline size_t penstock_number_bytes(const penstock_leaf *leaf) {
  static const size_t bytes[] = {4, 8, 1, 1, 4, 8};
  return leaf->kind == PENSTOCK_BOX ? bytes[leaf->type] : leaf->kind == PENSTOCK_MULTI_BINARY ? 1 : 8;
}

/* Where the leaf of an index begins in a row, in bytes; of their count, the bytes of a row. */
static inline size_t penstock_offset(const penstock_leaf *leaves, size_t index) {
  size_t before, bytes = 0;
  for (before = 0; before < index; ++before) bytes += penstock_numbers(leaves + before) * penstock_number_bytes(leaves + before);
  return bytes;
}

/* Whether leaves can be described, and no row is larger than a frame. */
static inline int penstock_leaves_are_right(const penstock_leaf *leaves, size_t count) {
  size_t index, axis, other, bytes = 0;
  for (index = 0; index < count; ++index) {
    const penstock_leaf *leaf = leaves + index;
    const int is_choice = leaf->kind == PENSTOCK_DISCRETE || leaf->kind == PENSTOCK_MULTI_DISCRETE;
    size_t numbers = 1;
    if (leaf->kind < PENSTOCK_BOX || leaf->kind > PENSTOCK_MULTI_BINARY || leaf->axes > 8) return 0;
    if (leaf->kind == PENSTOCK_BOX && (leaf->type < PENSTOCK_FLOAT32 || leaf->type > PENSTOCK_INT64)) return 0;
    if (leaf->kind == PENSTOCK_BOX && !(leaf->low <= leaf->high)) return 0;
    if (is_choice && (leaf->choices < 1 || leaf->choices > 0x7fffffff)) return 0;
    if (leaf->kind != PENSTOCK_BOX && (leaf->kind == PENSTOCK_DISCRETE) != (leaf->axes == 0)) return 0;
    for (axis = 0; axis < leaf->axes; ++axis) {
      if (!leaf->shape[axis] || leaf->shape[axis] > PENSTOCK_FRAME_BYTES / numbers) return 0;
      numbers *= leaf->shape[axis];
    }
    bytes += numbers * penstock_number_bytes(leaf);
    if (bytes > PENSTOCK_FRAME_BYTES || (count > 1 && !leaf->key)) return 0;
    for (other = 0; other < index; ++other)
      if (!strcmp(leaves[other].key, leaf->key)) return 0;
  }
  return count > 0;
}

/* Whether every choice and bit of a row is one; numbers of boxes are the environment's to judge. */
static inline int penstock_row_is_right(const penstock_leaf *leaves, size_t count, const unsigned char *row) {
  size_t index, number;
  for (index = 0; index < count; ++index) {
    const penstock_leaf *leaf = leaves + index;
    const size_t numbers = penstock_numbers(leaf), bytes = penstock_number_bytes(leaf);
    for (number = 0; leaf->kind != PENSTOCK_BOX && number < numbers; ++number) {
      int64_t choice = row[number];
      if (bytes == 8) memcpy(&choice, row + 8 * number, 8);
      if (choice < 0 || choice >= (leaf->kind == PENSTOCK_MULTI_BINARY ? 2 : leaf->choices)) return 0;
    }
    row += numbers * bytes;
  }
  return 1;
}

/* ---- descriptions ---- */

/* Text that is written piece by piece; `left` is 0 once it did not fit. */
typedef struct {
  char *at;
  size_t left;
} penstock_text;

static inline void penstock_print(penstock_text *text, const char *format, ...) {
  va_list values;
  int written;
  va_start(values, format);
  written = text->left ? vsnprintf(text->at, text->left, format, values) : -1;
  va_end(values);
  if (written < 0 || (size_t)written >= text->left) text->left = 0;
  else text->at += written, text->left -= (size_t)written;
}

/* A number of JSON: with a point also where the program's locale has a comma. */
static inline void penstock_print_number(penstock_text *text, double number) {
  char digits[40], *comma;
  snprintf(digits, sizeof digits, "%.17g", number);
  if ((comma = strchr(digits, ',')) != NULL) *comma = '.';
  penstock_print(text, "%s", digits);
}

static inline void penstock_print_bound(penstock_text *text, const char *name, const penstock_leaf *leaf, double bound) {
  if (!(fabs(bound) < 9.2e18) && leaf->type > PENSTOCK_FLOAT64) bound = INFINITY; /* beyond int64 */
  if (!isfinite(bound)) penstock_print(text, ",\"%s\":null", name);
  else if (leaf->type == PENSTOCK_FLOAT32 || leaf->type == PENSTOCK_FLOAT64) penstock_print(text, ",\"%s\":", name), penstock_print_number(text, bound);
  else penstock_print(text, ",\"%s\":%lld", name, (long long)bound);
}

static inline void penstock_print_leaf(penstock_text *text, const penstock_leaf *leaf) {
  static const char *const kinds[] = {"box", "discrete", "multi_discrete", "multi_binary"};
  static const char *const types[] = {"float32", "float64", "uint8", "int8", "int32", "int64"};
  size_t index;
  penstock_print(text, "{\"kind\":\"%s\"", kinds[leaf->kind]);
  if (leaf->kind == PENSTOCK_DISCRETE) penstock_print(text, ",\"n\":%lld}", (long long)leaf->choices);
  if (leaf->kind == PENSTOCK_DISCRETE) return;
  for (index = 0; index < leaf->axes; ++index) penstock_print(text, "%s%zu", index ? "," : ",\"shape\":[", leaf->shape[index]);
  penstock_print(text, leaf->axes ? "]" : ",\"shape\":[]");
  if (leaf->kind == PENSTOCK_BOX) {
    penstock_print(text, ",\"dtype\":\"%s\"", types[leaf->type]);
    penstock_print_bound(text, "low", leaf, leaf->low), penstock_print_bound(text, "high", leaf, leaf->high);
  }
  for (index = 0; leaf->kind == PENSTOCK_MULTI_DISCRETE && index < penstock_numbers(leaf); ++index)
    penstock_print(text, "%s%lld", index ? "," : ",\"nvec\":[", (long long)leaf->choices);
  penstock_print(text, leaf->kind == PENSTOCK_MULTI_DISCRETE ? "]}" : "}");
}

static inline void penstock_print_space(penstock_text *text, const penstock_leaf *leaves, size_t count) {
  size_t index;
  if (!leaves[0].key) penstock_print_leaf(text, leaves);
  for (index = 0; leaves[0].key && index < count; ++index) {
    penstock_print(text, "%s[\"%s\",", index ? "," : "{\"kind\":\"dict\",\"parts\":[", leaves[index].key);
    penstock_print_leaf(text, leaves + index);
    penstock_print(text, "]");
  }
  if (leaves[0].key) penstock_print(text, "]}");
}

#endif
