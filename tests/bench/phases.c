/* Cuts a worker's instructions into phases: a function of Python whose name is in a table begins the phase that the table says,
   and everything that it calls belongs to it, up to a function of another phase. At each change of the phase callgrind writes
   down what it has counted since the last one. See `tests.bench.phases`. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <internal/pycore_frame.h>
#include <stdint.h>
#include <valgrind/callgrind.h>

enum { SLOTS = 65536, MOST = 8192 };
static void *codes[SLOTS];
static int phases[SLOTS];
static PyObject *table;
static char *names[MOST];
static int current, armed, used;

static PyObject *hook(PyThreadState *state, struct _PyInterpreterFrame *frame, int thrown) {
    PyCodeObject *code = frame->f_code;
    unsigned slot = ((uintptr_t)code >> 4) & (SLOTS - 1);
    while (codes[slot] != code) {
        if (!codes[slot]) {
            PyObject *phase = PyDict_GetItem(table, code->co_qualname);
            Py_INCREF(code);
            codes[slot] = code;
            phases[slot] = phase ? (int)PyLong_AsLong(phase) : -1;
            if (!PyDict_Size(table) && used < MOST - 1) { /* each function is a phase of its own */
                phases[slot] = ++used;
                names[used] = strdup(PyUnicode_AsUTF8(code->co_qualname));
            }
            break;
        }
        slot = (slot + 1) & (SLOTS - 1);
    }
    int phase = phases[slot], before = current;
    if (phase < 0 || phase == before || !armed)
        return _PyEval_EvalFrameDefault(state, frame, thrown);
    CALLGRIND_DUMP_STATS_AT(names[before]);
    current = phase;
    PyObject *result = _PyEval_EvalFrameDefault(state, frame, thrown);
    CALLGRIND_DUMP_STATS_AT(names[phase]);
    current = before;
    return result;
}

static PyObject *use(PyObject *module, PyObject *arguments) {
    PyObject *list;
    if (!PyArg_ParseTuple(arguments, "OO", &table, &list))
        return NULL;
    Py_INCREF(table);
    for (int index = 0; index < PyList_Size(list) && index < MOST; index++)
        names[index] = strdup(PyUnicode_AsUTF8(PyList_GetItem(list, index)));
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), hook);
    Py_RETURN_NONE;
}

static PyObject *arm(PyObject *module, PyObject *none) {
    armed = 1;
    CALLGRIND_DUMP_STATS_AT("before");
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"use", use, METH_VARARGS, 0}, {"arm", arm, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "phases", 0, -1, methods};
PyMODINIT_FUNC PyInit_phases(void) { return PyModule_Create(&definition); }
