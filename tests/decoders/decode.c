// Reads a body a line and prints what cJSON understands: it ignores case, ends names at a NUL, and takes the first of several.
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static void copy(cJSON *answer, const char *as, const cJSON *body, const char *name, const char *otherwise) {
  const cJSON *item = cJSON_GetObjectItem(body, name);
  if (item == NULL || cJSON_IsNull(item))
    cJSON_AddItemToObject(answer, as, cJSON_Parse(otherwise));
  else
    cJSON_AddItemToObject(answer, as, cJSON_Duplicate(item, 1));
}

int main(void) {
  char *line = NULL;
  size_t size = 0;
  while (getline(&line, &size, stdin) > 0) {
    cJSON *answer = cJSON_CreateObject(), *body = cJSON_Parse(line);
    if (body == NULL) {
      cJSON_AddStringToObject(answer, "error", "cJSON_Parse");
    } else {
      const cJSON *newer = cJSON_GetObjectItem(body, "max_completion_tokens");
      copy(answer, "model", body, "model", "null");
      copy(answer, "ceiling", body, newer && !cJSON_IsNull(newer) ? "max_completion_tokens" : "max_tokens", "null");
      copy(answer, "n", body, "n", "1");
      copy(answer, "stream", body, "stream", "false");
      copy(answer, "usage", cJSON_GetObjectItem(body, "stream_options"), "include_usage", "false");
    }
    char *text = cJSON_PrintUnformatted(answer);
    puts(text);
    fflush(stdout);
    free(text);
    cJSON_Delete(answer);
    cJSON_Delete(body);
  }
  return 0;
}
